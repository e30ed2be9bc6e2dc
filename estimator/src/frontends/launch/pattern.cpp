#include "frontends/launch/pattern.hpp"

#include <algorithm>
#include <bitset>
#include <cctype>

namespace oomplan::launch {
namespace {

struct Token {
  enum class Kind : std::uint8_t { one_of, star } kind = Kind::one_of;
  std::bitset<256> bytes = {};
};

/// [:digit:] and the like.
bool in_class(std::string_view name, int c) {
  if (name == "alpha") return std::isalpha(c) != 0;
  if (name == "digit") return std::isdigit(c) != 0;
  if (name == "alnum") return std::isalnum(c) != 0;
  if (name == "upper") return std::isupper(c) != 0;
  if (name == "lower") return std::islower(c) != 0;
  if (name == "space") return std::isspace(c) != 0;
  if (name == "blank") return c == ' ' || c == '\t';
  if (name == "punct") return std::ispunct(c) != 0;
  if (name == "print") return std::isprint(c) != 0;
  if (name == "graph") return std::isgraph(c) != 0;
  if (name == "cntrl") return std::iscntrl(c) != 0;
  if (name == "xdigit") return std::isxdigit(c) != 0;
  return false;
}

/// At a bracket; `at` moves behind it. False: the bracket is only a character.
bool bracket(const Text& pattern, std::size_t& at, std::bitset<256>& out) {
  std::size_t i = at + 1;
  const auto is = [&](std::size_t k, char c) { return k < pattern.size() && !is_quoted(pattern[k]) && byte_of(pattern[k]) == c; };
  const bool negated = is(i, '!') || is(i, '^');
  if (negated) ++i;
  for (bool first = true;; first = false) {
    if (i >= pattern.size()) return false;
    if (is(i, ']') && !first) break;
    if (is(i, '[') && is(i + 1, ':')) {
      std::string name;
      std::size_t k = i + 2;
      for (; k < pattern.size() && byte_of(pattern[k]) != ':'; ++k) name += byte_of(pattern[k]);
      if (is(k, ':') && is(k + 1, ']')) {
        for (int c = 0; c < 256; ++c)
          if (in_class(name, c)) out.set(static_cast<std::size_t>(c));
        i = k + 2;
        continue;
      }
    }
    const auto low = static_cast<unsigned char>(byte_of(pattern[i]));
    if (is(i + 1, '-') && i + 2 < pattern.size() && !is(i + 2, ']')) {
      const auto high = static_cast<unsigned char>(byte_of(pattern[i + 2]));
      for (int c = low; c <= high; ++c) out.set(static_cast<std::size_t>(c));
      i += 3;
    } else {
      out.set(low);
      ++i;
    }
  }
  if (negated) out.flip();
  at = i + 1;
  return true;
}

std::vector<Token> tokens_of(const Text& pattern) {
  std::vector<Token> out;
  for (std::size_t i = 0; i < pattern.size();) {
    const char32_t unit = pattern[i];
    Token token;
    if (is_unknown(unit) || (!is_quoted(unit) && byte_of(unit) == '*')) {
      token.kind = Token::Kind::star;
      ++i;
    } else if (!is_quoted(unit) && byte_of(unit) == '?') {
      token.bytes.set();
      ++i;
    } else if (is_quoted(unit) || byte_of(unit) != '[' || !bracket(pattern, i, token.bytes)) {
      token.bytes.reset();
      token.bytes.set(static_cast<unsigned char>(byte_of(unit)));
      ++i;
    }
    out.push_back(token);
  }
  return out;
}

/// The tokens that may come next, as the subject is read unit by unit.
class Reached {
 public:
  Reached(const std::vector<Token>& tokens, Budget& budget) : tokens_(tokens), budget_(budget), at_(tokens.size() + 1) {
    at_[0] = true;
    pass_stars();
  }
  bool whole() const { return at_.back(); }
  bool any() const { return std::find(at_.begin(), at_.end(), true) != at_.end(); }
  void read(char32_t unit) {
    budget_.spend(static_cast<std::int64_t>(at_.size()) / 8 + 1);
    if (is_unknown(unit)) {  // any text: it may match whatever follows
      std::fill(std::find(at_.begin(), at_.end(), true), at_.end(), true);
      return;
    }
    std::vector<bool> next(at_.size());
    for (std::size_t i = 0; i < tokens_.size(); ++i) {
      if (!at_[i]) continue;
      if (tokens_[i].kind == Token::Kind::star)
        next[i] = true;
      else if (tokens_[i].bytes[static_cast<unsigned char>(byte_of(unit))])
        next[i + 1] = true;
    }
    at_.swap(next);
    pass_stars();
  }

 private:
  void pass_stars() {
    for (std::size_t i = 0; i < tokens_.size(); ++i)
      if (at_[i] && tokens_[i].kind == Token::Kind::star) at_[i + 1] = true;
  }
  const std::vector<Token>& tokens_;
  Budget& budget_;
  std::vector<bool> at_;
};

std::optional<std::size_t> matched(const Text& subject, const std::vector<Token>& tokens, bool most, Budget& budget) {
  Reached reached(tokens, budget);
  std::optional<std::size_t> out;
  for (std::size_t i = 0;; ++i) {
    if (reached.whole()) out = i;
    if ((out && !most) || i >= subject.size() || !reached.any()) return out;
    reached.read(subject[i]);
  }
}

}  // namespace

Match matches(const Text& subject, const Text& pattern, Budget& budget) {
  const std::vector<Token> tokens = tokens_of(pattern);
  Reached reached(tokens, budget);
  for (const char32_t unit : subject) reached.read(unit);
  if (!reached.whole()) return Match::no;
  const bool known = is_known(subject) && is_known(pattern);
  const bool anything = is_known(pattern) && !tokens.empty() &&
                        std::all_of(tokens.begin(), tokens.end(), [](const Token& t) { return t.kind == Token::Kind::star; });
  return known || anything ? Match::yes : Match::unknown;
}

std::optional<std::size_t> matched_front(const Text& subject, const Text& pattern, bool most, Budget& budget) {
  return matched(subject, tokens_of(pattern), most, budget);
}

std::optional<std::size_t> matched_back(const Text& subject, const Text& pattern, bool most, Budget& budget) {
  std::vector<Token> tokens = tokens_of(pattern);
  std::reverse(tokens.begin(), tokens.end());
  return matched(Text(subject.rbegin(), subject.rend()), tokens, most, budget);
}

}  // namespace oomplan::launch
