#include "frontends/launch/regular.hpp"

#include <algorithm>
#include <cctype>
#include <functional>

namespace oomplan::launch {
namespace {

using Node = Regular::Node;
constexpr int kDeepestPattern = 50;

struct NotRead {};

class PatternReader {
 public:
  PatternReader(std::string_view text, bool extended, bool ignore_case)
      : text_(text), extended_(extended), ignore_(ignore_case) {}
  Node run() {
    Node out = either();
    if (at_ < text_.size()) throw NotRead{};
    return out;
  }
  std::size_t groups() const { return groups_; }

 private:
  bool is(char c) const { return at_ < text_.size() && text_[at_] == c; }
  /// An operator: in a basic expression some stand behind a backslash.
  bool take(char c, bool escaped_in_basic) {
    if (!extended_ && escaped_in_basic) {
      if (!text_.substr(at_).starts_with(std::string{'\\', c})) return false;
      at_ += 2;
      return true;
    }
    if (!is(c)) return false;
    ++at_;
    return true;
  }
  bool sees(char c, bool escaped_in_basic) {
    const std::size_t before = at_;
    const bool out = take(c, escaped_in_basic);
    at_ = before;
    return out;
  }
  Node either() {
    if (++depth_ > kDeepestPattern) throw NotRead{};
    Node out{Node::Kind::either};
    do out.inside.push_back(sequence());
    while (take('|', true));
    --depth_;
    return out.inside.size() == 1 ? std::move(out.inside[0]) : out;
  }
  Node sequence() {
    Node out{Node::Kind::sequence};
    while (at_ < text_.size() && !sees('|', true) && !sees(')', true)) out.inside.push_back(repeated(out.inside.empty()));
    return out;
  }
  Node repeated(bool first) {
    Node out = atom(first);
    for (;;) {
      int least = 0, most = -1;
      if (take('*', false)) {
      } else if (take('+', true)) {
        least = 1;
      } else if (take('?', true)) {
        most = 1;
      } else if (take('{', true)) {
        least = number(), most = least;
        if (take(',', false)) most = sees('}', true) ? -1 : number();
        if (!take('}', true) || (most >= 0 && most < least)) throw NotRead{};
      } else {
        return out;
      }
      Node repeat{Node::Kind::repeat};
      repeat.least = least, repeat.most = most;
      repeat.inside.push_back(std::move(out));
      out = std::move(repeat);
      if (++repeats_ > kDeepestPattern) throw NotRead{};
    }
  }
  int number() {
    int out = 0;
    const std::size_t start = at_;
    for (; at_ < text_.size() && std::isdigit(static_cast<unsigned char>(text_[at_])) != 0 && out < 1000; ++at_)
      out = out * 10 + text_[at_] - '0';
    if (at_ == start || out > 255) throw NotRead{};
    return out;
  }
  Node set_of(const std::function<bool(int)>& wanted) const {
    Node out{Node::Kind::byte_set};
    out.bytes.resize(256);
    for (int c = 0; c < 256; ++c)
      out.bytes[static_cast<std::size_t>(c)] = wanted(c) || (ignore_ && (wanted(std::tolower(c)) || wanted(std::toupper(c))));
    return out;
  }
  Node atom(bool first) {
    if (take('(', true)) {
      Node out{Node::Kind::group};
      out.number = ++groups_;
      out.inside.push_back(either());
      if (!take(')', true)) throw NotRead{};
      return out;
    }
    const char c = text_[at_];
    if (c == '^' && (extended_ || first)) return ++at_, Node{Node::Kind::begin};
    if (c == '$' && (extended_ || at_ + 1 == text_.size() || text_.substr(at_ + 1).starts_with("\\)")))
      return ++at_, Node{Node::Kind::end};
    if (c == '.') return ++at_, set_of([](int) { return true; });
    if (c == '[') return bracket();
    if (extended_ && (c == '*' || c == '+' || c == '?' || c == '{')) throw NotRead{};
    if (c != '\\') return ++at_, set_of([c](int x) { return x == static_cast<unsigned char>(c); });
    if (at_ + 1 >= text_.size()) throw NotRead{};
    const char e = text_[at_ + 1];
    if (std::isdigit(static_cast<unsigned char>(e)) != 0 || std::string_view("bB<>`'").find(e) != std::string_view::npos)
      throw NotRead{};
    at_ += 2;
    const auto word = [](int x) { return std::isalnum(x) != 0 || x == '_'; };
    if (e == 'w') return set_of(word);
    if (e == 'W') return set_of([word](int x) { return !word(x); });
    if (e == 's') return set_of([](int x) { return std::isspace(x) != 0; });
    if (e == 'S') return set_of([](int x) { return std::isspace(x) == 0; });
    return set_of([e](int x) { return x == static_cast<unsigned char>(e); });
  }
  Node bracket() {
    std::vector<bool> in(256);
    ++at_;
    const bool negated = is('^');
    if (negated) ++at_;
    for (bool first = true;; first = false) {
      if (at_ >= text_.size()) throw NotRead{};
      if (is(']') && !first) break;
      if (is('[') && at_ + 1 < text_.size() && std::string_view(":.=").find(text_[at_ + 1]) != std::string_view::npos) {
        named_class(in);
        continue;
      }
      const auto low = static_cast<unsigned char>(text_[at_++]);
      unsigned char high = low;
      if (is('-') && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        high = static_cast<unsigned char>(text_[at_ + 1]);
        at_ += 2;
      }
      for (int c = low; c <= high; ++c) in[static_cast<std::size_t>(c)] = true;
    }
    ++at_;
    return set_of([&in, negated](int c) { return in[static_cast<std::size_t>(c)] != negated; });
  }
  void named_class(std::vector<bool>& in) {
    struct Row {
      std::string_view name;
      int (*test)(int);
    };
    static constexpr Row kRows[] = {{"[:alpha:]", std::isalpha}, {"[:digit:]", std::isdigit},  {"[:alnum:]", std::isalnum},
                                    {"[:upper:]", std::isupper}, {"[:lower:]", std::islower},  {"[:space:]", std::isspace},
                                    {"[:punct:]", std::ispunct}, {"[:xdigit:]", std::isxdigit}};
    for (const Row& row : kRows)
      if (text_.substr(at_).starts_with(row.name)) {
        for (int c = 0; c < 256; ++c)
          if (row.test(c) != 0) in[static_cast<std::size_t>(c)] = true;
        at_ += row.name.size();
        return;
      }
    throw NotRead{};
  }

  std::string_view text_;
  bool extended_, ignore_;
  std::size_t at_ = 0, groups_ = 0;
  int depth_ = 0, repeats_ = 0;
};

/// All ways to match, longest kept; every step is paid for.
class Matcher {
 public:
  Matcher(std::string_view text, std::size_t groups, Budget& budget) : text_(text), budget_(budget), spans_(groups + 1) {}

  std::vector<Span> at(const Node& root, std::size_t begin) {
    std::fill(spans_.begin(), spans_.end(), Span{});
    best_.clear();
    step(root, begin, [&](std::size_t end) {
      if (best_.empty() || end - begin > best_[0].length) {
        best_ = spans_;
        best_[0] = {begin, end - begin};
      }
    });
    return best_;
  }

 private:
  using Then = std::function<void(std::size_t)>;
  void step(const Node& node, std::size_t at, const Then& then) {
    budget_.spend(1);
    if (++depth_ > 2000) throw TooMuch("a regular expression over a long text");
    switch (node.kind) {
      case Node::Kind::byte_set:
        if (at < text_.size() && node.bytes[static_cast<unsigned char>(text_[at])]) then(at + 1);
        break;
      case Node::Kind::begin:
        if (at == 0) then(at);
        break;
      case Node::Kind::end:
        if (at == text_.size()) then(at);
        break;
      case Node::Kind::sequence:
        sequence(node, 0, at, then);
        break;
      case Node::Kind::either:
        for (const Node& n : node.inside) step(n, at, then);
        break;
      case Node::Kind::group:
        step(node.inside[0], at, [&](std::size_t end) {
          const Span before = spans_[node.number];
          spans_[node.number] = {at, end - at};
          then(end);
          spans_[node.number] = before;
        });
        break;
      case Node::Kind::repeat:
        repeat(node, 0, at, then);
        break;
    }
    --depth_;
  }
  void sequence(const Node& node, std::size_t i, std::size_t at, const Then& then) {
    if (i == node.inside.size()) return then(at);
    step(node.inside[i], at, [&](std::size_t end) { sequence(node, i + 1, end, then); });
  }
  void repeat(const Node& node, int done, std::size_t at, const Then& then) {
    const Node& inside = node.inside[0];
    if (inside.kind == Node::Kind::byte_set) return run_of_bytes(node, at, then);
    if (node.most < 0 || done < node.most)
      step(inside, at, [&](std::size_t end) {
        if (end > at || done < node.least) repeat(node, done + 1, end, then);
      });
    if (done >= node.least) then(at);
  }
  /// Without a level of the stack for each byte.
  void run_of_bytes(const Node& node, std::size_t at, const Then& then) {
    std::size_t most = 0;
    while (at + most < text_.size() && (node.most < 0 || most < static_cast<std::size_t>(node.most)) &&
           node.inside[0].bytes[static_cast<unsigned char>(text_[at + most])])
      ++most;
    for (std::size_t n = most + 1; n-- > static_cast<std::size_t>(node.least);) {
      budget_.spend(1);
      then(at + n);
    }
  }

  std::string_view text_;
  Budget& budget_;
  std::vector<Span> spans_, best_;
  int depth_ = 0;
};

}  // namespace

std::optional<Regular> Regular::compile(std::string_view pattern, bool extended, bool ignore_case) {
  try {
    PatternReader reader(pattern, extended, ignore_case);
    Regular out;
    out.root_ = reader.run();
    out.groups_ = reader.groups();
    return out;
  } catch (const NotRead&) {
    return std::nullopt;
  }
}

std::vector<Span> Regular::find(std::string_view text, std::size_t from, Budget& budget) const {
  for (std::size_t begin = from; begin <= text.size(); ++begin) {
    std::vector<Span> out = Matcher(text, groups_, budget).at(root_, begin);
    if (!out.empty()) return out;
  }
  return {};
}

}  // namespace oomplan::launch
