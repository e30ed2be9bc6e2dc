// Plain data as a pickle or a JSON text holds it: None, booleans, integers, reals, texts, lists, tuples and dicts, and nothing
// else. One tree (a graph, where a pickle refers to a value again) for a whole file, kept as 16 bytes a value.
//
// Readers fill it with the add_ functions and hand it on; who uses it takes root() and follows keys. A value that a pickle
// shares may even contain itself, so nobody may walk the whole graph: follow names, and count.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace oomplan::snapshot {

/// `wide`: an integer of more than 64 bits with its sign; only that it is one is kept.
enum class Kind : std::uint8_t { none, boolean, integer, wide, real, text, bytes, list, tuple, dict };
/// "a list", "a text".
std::string_view name(Kind);

/// Number of a value within its Values.
using Ref = std::uint32_t;

class Values {
 public:
  /// Most values of one file: with 16 bytes each and their places in containers, a few GiB.
  static constexpr std::size_t kMost = std::size_t{1} << 27;

  /// `source` is the file: texts that stand in it as they are refer to it and are not copied.
  explicit Values(std::string source) : source_(std::move(source)) {}
  const std::string& source() const { return source_; }
  std::size_t size() const { return nodes_.size(); }

  // All return the new value's number. REQUIRES: size() < kMost.
  Ref add_none() { return add(Kind::none, 0, 0); }
  Ref add_boolean(bool value) { return add(Kind::boolean, value ? 1 : 0, 0); }
  Ref add_integer(std::int64_t value) { return add(Kind::integer, value, 0); }
  Ref add_wide() { return add(Kind::wide, 0, 0); }
  Ref add_real(double value);
  /// Bytes [begin, begin + size) of the source.
  Ref add_text(std::size_t begin, std::size_t size, Kind kind = Kind::text);
  /// A text that the source spells differently (escapes).
  Ref add_copied_text(std::string_view text);
  /// Items of a dict: key, value, key, value.
  Ref add_container(Kind kind, std::vector<Ref> items);
  /// REQUIRES: a list or a dict.
  void append(Ref container, const Ref* first, std::size_t count);

  Kind kind(Ref ref) const { return nodes_[ref].kind; }
  std::int64_t integer(Ref ref) const { return nodes_[ref].value; }
  double real(Ref ref) const;
  std::string_view text(Ref ref) const;
  /// Of a list, a tuple or a dict.
  const std::vector<Ref>& items(Ref ref) const { return items_[static_cast<std::size_t>(nodes_[ref].value)]; }

  void set_root(Ref ref) { root_ = ref; }
  Ref root() const { return root_; }

 private:
  struct Node {
    std::int64_t value = 0;  // integer; bits of a real; where a text begins; which items
    std::uint32_t length = 0;
    Kind kind = Kind::none;
  };
  Ref add(Kind kind, std::int64_t value, std::uint32_t length);

  std::string source_;
  std::string copied_;  // texts that begin behind the source
  std::vector<Node> nodes_;
  std::vector<std::vector<Ref>> items_;
  Ref root_ = 0;
};

/// The value of a text key in a dict, nothing when it is missing or `dict` is none. The last one counts, as in Python.
std::optional<Ref> find(const Values&, Ref dict, std::string_view key);

}  // namespace oomplan::snapshot
