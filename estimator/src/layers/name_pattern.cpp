#include "layers/name_pattern.hpp"

#include <algorithm>
#include <optional>
#include <utility>

namespace oomplan {
namespace {

constexpr std::size_t kLongest = 2000;      // characters of a pattern
constexpr std::size_t kMostStates = 20000;  // repetitions written out
constexpr int kDeepest = 50;                // groups inside of groups
constexpr int kMostTimes = 1000;

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word(char c) { return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

}  // namespace

/// Recursive descent; a piece of a pattern is a chain of states with one entry and one open end.
class NamePatternParser {
 public:
  NamePatternParser(std::string_view text, NamePattern& out, std::string& why) : text_(text), out_(out), why_(why) {}

  void run() {
    if (text_.size() > kLongest) return refuse("an expression of more than 2000 characters");
    const Piece whole = alternatives(0);
    if (!why_.empty()) return;
    if (at_ < text_.size()) return refuse("')' without a group");
    out_.start_ = whole.in;
    join(whole.out, add({State::Kind::match, {}, -1, -1}));
  }

 private:
  using State = NamePattern::State;
  using Characters = NamePattern::Characters;
  struct Piece {
    int in = -1, out = -1;
  };

  void refuse(std::string what) {
    if (why_.empty()) why_ = std::move(what);
  }
  bool more() const { return why_.empty() && at_ < text_.size(); }
  bool take(char c) {
    if (!more() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  int add(const State& s) {
    if (out_.states_.size() >= kMostStates) refuse("an expression that repeats so much");
    out_.states_.push_back(s);
    return static_cast<int>(out_.states_.size()) - 1;
  }
  /// Every open end is a fork with nothing behind it yet.
  int open() { return add({State::Kind::fork, {}, -1, -1}); }
  void join(int from, int to) {
    if (from >= 0) out_.states_[static_cast<std::size_t>(from)].next = to;  // -1 behind a refusal
  }
  Piece nothing() {
    const int only = open();
    return {only, only};
  }
  Piece one(State::Kind kind, const Characters& characters = {}) {
    const int end = open();
    return {add({kind, characters, end, -1}), end};
  }

  Piece alternatives(int depth) {
    if (depth > kDeepest) {
      refuse("groups that are nested so deep");
      return {};
    }
    Piece all = sequence(depth);
    while (take('|')) {
      const Piece other = sequence(depth);
      if (!why_.empty()) return {};
      const int end = open();
      join(all.out, end);
      join(other.out, end);
      all = {add({State::Kind::fork, {}, all.in, other.in}), end};
    }
    return all;
  }
  Piece sequence(int depth) {
    Piece all = nothing();
    while (more() && text_[at_] != '|' && text_[at_] != ')') {
      const Piece next = repeated(depth);
      if (!why_.empty()) return {};
      join(all.out, next.in);
      all.out = next.out;
    }
    return all;
  }

  struct Times {
    int least = 1, most = 1;  ///< most -1: any number
  };
  std::optional<int> number() {
    if (!more() || !is_digit(text_[at_])) return std::nullopt;
    int value = 0;
    for (; more() && is_digit(text_[at_]); ++at_) value = value > kMostTimes ? value : value * 10 + (text_[at_] - '0');
    if (value > kMostTimes) refuse("a repetition of more than 1000 times");
    return value;
  }
  /// {m}, {m,}, {,n}, {m,n}; any other brace is a character, as in Python.
  std::optional<Times> braces() {
    const std::size_t before = at_;
    if (!take('{')) return std::nullopt;
    const std::optional<int> least = number();
    const bool comma = take(',');
    const std::optional<int> most = comma ? number() : least;
    if (take('}') && (least || comma)) {
      const Times out{least.value_or(0), most ? *most : -1};
      if (out.most >= 0 && out.most < out.least) refuse("a repetition whose least number is above its most");
      return out;
    }
    at_ = before;
    return std::nullopt;
  }
  std::optional<Times> times() {
    if (take('*')) return Times{0, -1};
    if (take('+')) return Times{1, -1};
    if (take('?')) return Times{0, 1};
    return braces();
  }
  Piece repeated(int depth) {
    const std::size_t from = at_;
    Piece first = atom(depth);
    const std::size_t to = at_;
    const std::optional<Times> wanted = times();
    if (!wanted || !why_.empty()) return first;
    if (take('+')) refuse("possessive repetition");
    (void)take('?');  // lazy: the same names match
    const std::size_t behind = at_;
    if (more() && (text_[at_] == '*' || text_[at_] == '+' || text_[at_] == '?')) refuse("a repetition of a repetition");
    Piece all = nothing();
    const int copies = wanted->most < 0 ? std::max(wanted->least, 1) : wanted->most;
    for (int i = 0; i < copies && why_.empty(); ++i) {
      if (i > 0) {
        at_ = from;
        first = atom(depth);
        at_ = to;
      }
      const bool optional = i >= wanted->least, loops = wanted->most < 0 && i + 1 == copies;
      append(all, first, optional, loops);
    }
    at_ = behind;
    return all;
  }
  void append(Piece& all, Piece next, bool optional, bool loops) {
    const int end = open();
    const int fork = add({State::Kind::fork, {}, next.in, optional ? end : -1});
    join(all.out, fork);
    if (loops) {
      const int again = add({State::Kind::fork, {}, next.in, end});
      join(next.out, again);
    } else {
      join(next.out, end);
    }
    all.out = end;
  }

  Piece atom(int depth) {
    const char c = text_[at_++];
    switch (c) {
      case '(':
        return group(depth);
      case '[':
        return one(State::Kind::take, set());
      case '\\':
        return one(State::Kind::take, escape());
      case '.': {
        Characters all;
        all.set();
        all.reset('\n');
        return one(State::Kind::take, all);
      }
      case '^':
        return one(State::Kind::begin);
      case '$':
        return one(State::Kind::end);
      case '*':
      case '+':
      case '?':
        refuse("a repetition of nothing");
        return nothing();
      default:
        return one(State::Kind::take, only(c));
    }
  }
  Piece group(int depth) {
    if (take('?')) {
      if (take('P')) {
        if (!take('<')) refuse("a reference to a group");
        while (more() && text_[at_] != '>') ++at_;
        if (!take('>')) refuse("the name of a group without an end");
      } else if (!take(':')) {
        refuse("looking ahead or behind, and flags");
      }
    }
    if (!why_.empty()) return {};
    const Piece inside = alternatives(depth + 1);
    if (!take(')')) refuse("a group without ')'");
    return inside;
  }

  static Characters only(char c) {
    Characters out;
    out.set(static_cast<unsigned char>(c));
    return out;
  }
  static Characters where(bool (*test)(char), bool wanted) {
    Characters out;
    for (int c = 0; c < 256; ++c) out.set(static_cast<std::size_t>(c), test(static_cast<char>(c)) == wanted);
    return out;
  }
  Characters escape() {
    if (!more()) {
      refuse("a '\\' at the end");
      return {};
    }
    const char c = text_[at_++];
    const auto space = [](char s) { return s == ' ' || (s >= '\t' && s <= '\r'); };
    switch (c) {
      case 'd':
      case 'D':
        return where(is_digit, c == 'd');
      case 'w':
      case 'W':
        return where(is_word, c == 'w');
      case 's':
      case 'S':
        return where(space, c == 's');
      default:
        break;
    }
    if (is_word(c) && c != '_') refuse(std::string("'\\") + c + "'");
    return only(c);
  }
  Characters set() {
    Characters out;
    const bool inverted = take('^');
    for (bool first = true; more() && (first || text_[at_] != ']'); first = false) {
      const char c = text_[at_++];
      Characters here = c == '\\' ? escape() : only(c);
      const bool range = more() && text_[at_] == '-' && at_ + 1 < text_.size() && text_[at_ + 1] != ']';
      if (range && here.count() == 1) {
        ++at_;
        const char last = text_[at_++];
        if (last == '\\') refuse("a range that ends with an escape");
        char low = c;
        if (c == '\\') low = text_[at_ - 3];
        if (static_cast<unsigned char>(last) < static_cast<unsigned char>(low))
          refuse("a range of characters that runs backwards");
        for (int between = static_cast<unsigned char>(low); between <= static_cast<unsigned char>(last); ++between)
          here.set(static_cast<std::size_t>(between));
      }
      out |= here;
    }
    if (!take(']')) refuse("a class without ']'");
    return inverted ? ~out : out;
  }

  std::string_view text_;
  NamePattern& out_;
  std::string& why_;
  std::size_t at_ = 0;
};

NamePattern NamePattern::parse(std::string_view pattern, std::string& why) {
  NamePattern out;
  why.clear();
  NamePatternParser(pattern, out, why).run();
  if (!why.empty()) out.start_ = -1;
  return out;
}

/// The states that wait for a character, reached from `state` without one.
void NamePattern::follow(int state, std::size_t at, std::size_t length, std::vector<std::uint32_t>& seen, std::uint32_t mark,
                         std::vector<int>& out) const {
  std::vector<int> open{state};
  while (!open.empty()) {
    const int now = open.back();
    open.pop_back();
    if (now < 0 || seen[static_cast<std::size_t>(now)] == mark) continue;
    seen[static_cast<std::size_t>(now)] = mark;
    const State& s = states_[static_cast<std::size_t>(now)];
    if (s.kind == State::Kind::take || s.kind == State::Kind::match) {
      out.push_back(now);
    } else if (s.kind == State::Kind::fork) {
      open.push_back(s.next);
      open.push_back(s.other);
    } else if (s.kind == State::Kind::begin ? at == 0 : at == length) {
      open.push_back(s.next);
    }
  }
}

bool NamePattern::matches(std::string_view name) const {
  if (start_ < 0) return false;
  std::vector<std::uint32_t> seen(states_.size(), 0);
  std::vector<int> now, next;
  follow(start_, 0, name.size(), seen, 1, now);
  for (std::size_t i = 0; i < name.size() && !now.empty(); ++i) {
    next.clear();
    for (const int s : now) {
      const State& state = states_[static_cast<std::size_t>(s)];
      if (state.kind == State::Kind::take && state.characters.test(static_cast<unsigned char>(name[i])))
        follow(state.next, i + 1, name.size(), seen, static_cast<std::uint32_t>(i) + 2, next);
    }
    now.swap(next);
  }
  for (const int s : now)
    if (states_[static_cast<std::size_t>(s)].kind == State::Kind::match) return true;
  return false;
}

}  // namespace oomplan
