// A composed configuration as a tree of typed values, each with the place where it can be edited.
//
// A value has the type that Python would see behind OmegaConf: "1e-6" is a float, "yes" a boolean, "010" eight. What is not a
// value yet keeps a kind of its own: `???` is missing, "${a.b}" an interpolation. Three kinds appear only when interpolations
// have been resolved: unknown (an environment variable that nobody gave, the time of day), broken (a problem was reported for
// it).
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <oomplan/job.hpp>

namespace oomplan::compose {

/// Limits of a tree, whatever it was made from.
inline constexpr int kDeepest = 64;
inline constexpr std::int64_t kMostNodes = 100'000;
inline constexpr std::size_t kLongestText = std::size_t{1} << 16;
inline constexpr std::size_t kMostVia = 32;  ///< links that a value remembers, the nearest ones

/// An interpolation that a value came through.
struct Link {
  std::string key;  ///< what it points to: "actor.path"
  Place place;      ///< where the interpolation stands
};

struct Entry;
struct Node {
  enum class Kind : std::uint8_t { null, boolean, integer, real, text, missing, interpolation, unknown, broken, list, map };
  Kind kind = Kind::null;
  bool boolean = false;
  std::int64_t integer = 0;
  double real = 0;
  std::string text;         ///< of a text; of an interpolation as written; of an unknown or broken value the reason
  Origin origin;            ///< of the literal: a file with line and column, or an override (`because` is the override as typed)
  std::vector<Link> via;    ///< interpolations on the way to the literal, the first is the one that stands here
  std::vector<Node> items;  ///< of a list
  std::vector<Entry> entries;  ///< of a map, in order

  bool is_container() const { return kind == Kind::list || kind == Kind::map; }
  /// Of a map; only keys that are text are found, as in OmegaConf.
  const Node* find(std::string_view key) const;
  Node* find(std::string_view key);
  /// "actor.optimizer.lr", "specs.0.gpu". nullptr: there is none.
  const Node* at(std::string_view path) const;
  Node* at(std::string_view path);
};
struct Entry {
  std::string key;
  Node::Kind key_kind = Node::Kind::text;  ///< YAML keys may be numbers: 1 and '1' are different keys
  Place place;
  Node value;
};

Node text_node(std::string text, Origin origin = {});
/// "'1e-06'", "a list": for messages.
std::string describe(const Node&);
/// Python's str() of a value: "1e-06", "True", "None", "[1, 'a']".
std::string python_text(const Node&);
std::string python_text(double);
/// Nodes in the tree, itself included.
std::int64_t size_of(const Node&);
/// Containers in each other, the node itself included: 0 for a value, 2 for [[1]].
int depth_of(const Node&);
/// Writes the dotted path of every value into its origin.
void set_paths(Node& root);

/// "a.b[c].d" -> a, b, c, d; ".a" -> "", a.
std::vector<std::string> split_key(std::string_view key);
std::string joined(const std::vector<std::string>& parts, std::size_t count);
/// The index that a key of a list means; -1: it is no index.
std::int64_t index_of(std::string_view key);

}  // namespace oomplan::compose
