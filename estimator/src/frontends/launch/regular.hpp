// Regular expressions of POSIX, extended (for =~ and grep -E) and basic (grep, sed): IEEE Std 1003.1-2017, chapter 9.
#pragma once
#include <optional>
#include <string_view>
#include <vector>

#include "frontends/launch/budget.hpp"

namespace oomplan::launch {

/// Where a match begins and how long it is: the whole, then the groups. npos: a group without part in it.
struct Span {
  std::size_t begin = std::string_view::npos, length = 0;
};

class Regular {
 public:
  /// nullopt: it is none, or has what is not read here (back references, collating elements).
  static std::optional<Regular> compile(std::string_view pattern, bool extended, bool ignore_case = false);
  /// The leftmost longest match at or behind `from`; empty: none.
  std::vector<Span> find(std::string_view text, std::size_t from, Budget&) const;

  struct Node {
    enum class Kind : std::uint8_t { byte_set, begin, end, group, sequence, either, repeat } kind = Kind::sequence;
    std::vector<bool> bytes = {};  ///< byte_set
    std::vector<Node> inside = {};
    int least = 0, most = -1;  ///< repeat; -1: any number
    std::size_t number = 0;    ///< group
  };

 private:
  Node root_;
  std::size_t groups_ = 0;
};

}  // namespace oomplan::launch
