// A YAML text (or the same in JSON) as a tree of texts, each with its line and column. Scalars stay as they are written: what a
// scalar means is decided by whoever knows what is expected there.
//
// Stricter than YAML: one document, keys are scalars and stand once (the merge key "<<" as often as one likes where it is a merge
// key: Rules), aliases are copied and count as if written out. Refused
// before it costs anything: texts above kMostBytes, above kMostNodes nodes (aliases expanded) or kDeepest levels, NUL bytes,
// texts that are not UTF-8. All of it is InputError with the place.
#pragma once
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <oomplan/units/errors.hpp>

namespace oomplan::yaml {

inline constexpr std::size_t kMostBytes = std::size_t{1} << 20;
inline constexpr std::size_t kMostNodes = 10'000;
inline constexpr int kDeepest = 64;

struct Entry;
struct Node {
  enum class Kind { null, scalar, list, map };
  Kind kind = Kind::null;
  std::string text;     ///< of a scalar
  bool quoted = false;  ///< then it is text, whatever it looks like
  std::string tag;      ///< written out, such as "tag:yaml.org,2002:str" for !!str; empty: none
  int line = 0, column = 0;
  std::vector<Node> items;
  std::vector<Entry> entries;  ///< of a map, in the order of the file

  const Node* find(std::string_view key) const;
};
/// Key and value. Not a std::pair, which cannot be named before Node is complete.
struct Entry {
  Node first, second;
};

/// "a list", "a map", "'16k'", "nothing".
std::string describe(const Node&);
struct Rules {
  bool merge_keys = false;               ///< "<<" may stand more than once in a map
  std::string_view what = "a job file";  ///< for the messages about size
};
/// Throws InputError. `file` goes into the places.
Node parse(std::string_view text, const std::string& file, const Rules& rules = {});

}  // namespace oomplan::yaml
