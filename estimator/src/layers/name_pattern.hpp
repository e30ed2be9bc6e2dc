// Python's re.fullmatch on names of modules, without backtracking: every pattern takes time in proportion to its length and the
// name's.
//
// Understood: literals, '.', classes, \d \w \s and their opposites, groups (also named and non-capturing), alternatives, * + ?
// {m,n} (greedy or lazy: the same names match), ^ and $ at the ends. Anything else is refused by name.
#pragma once
#include <bitset>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace oomplan {

class NamePattern {
 public:
  /// The pattern, or what of it is not understood in `why`, which is empty otherwise.
  static NamePattern parse(std::string_view pattern, std::string& why);
  bool matches(std::string_view name) const;

 private:
  friend class NamePatternParser;
  using Characters = std::bitset<256>;
  struct State {
    enum class Kind : std::uint8_t { take, fork, begin, end, match } kind = Kind::match;
    Characters characters;  ///< of take
    int next = -1, other = -1;
  };
  void follow(int state, std::size_t at, std::size_t length, std::vector<std::uint32_t>& seen, std::uint32_t mark,
              std::vector<int>& out) const;

  std::vector<State> states_;
  int start_ = -1;
};

}  // namespace oomplan
