// Written from hydra/grammar/OverrideLexer.g4 and OverrideParser.g4 (Hydra 1.3.2).
#include "frontends/compose/override.hpp"

#include <algorithm>
#include <array>
#include <cctype>

#include <fmt/format.h>

#include "frontends/compose/characters.hpp"
#include "frontends/compose/words.hpp"
#include "units/utf8.hpp"

namespace oomplan::compose {
namespace {

constexpr int kDeepestValue = 32;
constexpr std::string_view kGrammar = "key=value, +key=value, ++key=value, ~key or group=option";

class Parser {
 public:
  explicit Parser(const std::string& typed) : typed_(typed), left_(typed) {}

  Override run() {
    Override out;
    out.typed = typed_;
    out.kind = kind();
    read_key(out);
    origin_ = origin_of(typed_, out.key);
    if (left_.empty() && out.kind == Override::Kind::remove) return out;
    if (left_.empty()) refuse("no '='", std::string(kGrammar));
    eat('=');
    skip_blanks();
    if (left_.empty()) {
      out.value = text_node({}, origin_);
      return out;
    }
    out.value = element();
    if (!left_.empty() && next_token() == ',') refuse_sweep();
    if (!left_.empty()) refuse_here();
    return out;
  }

 private:
  [[noreturn]] void refuse(std::string found, std::string expected, std::string why = {}) const {
    throw InputError({{"command line", 0, 0, typed_}, std::move(found), std::move(expected), {}, std::move(why)});
  }
  [[noreturn]] void refuse_here() const {
    if (left_.empty())
      refuse("an end", "a value", "Hydra's override grammar does not allow it: a bracket or a quote is not closed");
    refuse(
        fmt::format("'{}'", left_.substr(0, character())), "a quoted value: key='...'",
        fmt::format("Hydra's override grammar does not allow this character at position {}", typed_.size() - left_.size() + 1));
  }
  /// Bytes of the character that comes.
  std::size_t character() const {
    std::size_t n = 1;
    while (n < left_.size() && (static_cast<unsigned char>(left_[n]) & 0xC0) == 0x80) ++n;
    return n;
  }
  [[noreturn]] void refuse_sweep() const {
    refuse("a sweep over several values", "one value: [a,b] for a list, quotes for a text with commas",
           "Hydra takes this for a sweep, which needs --multirun; a job has one value");
  }

  bool accept(char c) {
    if (left_.empty() || left_.front() != c) return false;
    left_.remove_prefix(1);
    return true;
  }
  void eat(char c) {
    if (!accept(c)) refuse_here();
  }
  void skip_blanks() { left_.remove_prefix(blank_length(left_)); }
  char next_token() const {
    const std::size_t blanks = blank_length(left_);
    return blanks < left_.size() ? left_[blanks] : '\0';
  }
  bool closes(char c) {
    if (next_token() != c) return false;
    skip_blanks();
    left_.remove_prefix(1);
    return true;
  }

  Override::Kind kind() {
    if (accept('~')) return Override::Kind::remove;
    if (!accept('+')) return Override::Kind::change;
    return accept('+') ? Override::Kind::force : Override::Kind::add;
  }
  void read_key(Override& out) {
    const std::string_view begin = left_;
    const bool plain = name_length(left_) > 0;
    std::string_view word = key_word();
    if (left_.starts_with('/')) {
      const bool name = plain && name_length(word) == word.size();
      while (name && accept('/')) {
        const std::size_t n = name_length(left_);
        if (n == 0) refuse_key();
        left_.remove_prefix(n);
      }
      word = begin.substr(0, begin.size() - left_.size());
    }
    if (word.empty()) refuse_key();
    out.key = word;
    if (accept('@')) out.package = std::string(key_word());
    if (!left_.empty() && left_.front() != '=') refuse_key();
  }
  [[noreturn]] void refuse_key() const {
    refuse(fmt::format("'{}'", left_.empty() ? "an end" : std::string(left_.substr(0, character()))), std::string(kGrammar),
           fmt::format("Hydra's keys are names and dots, groups names and slashes; this stands at position {}",
                       typed_.size() - left_.size() + 1));
  }
  /// A name, or names and numbers with dots between them; may be empty.
  std::string_view key_word() {
    const auto part = [](std::string_view s) -> std::size_t {
      if (s.empty()) return 0;
      if (is_digit(s[0])) return unsigned_length(s);
      if (!is_letter(s[0]) && s[0] != '_' && s[0] != '$') return 0;
      std::size_t n = 1;
      while (n < s.size() && (is_letter(s[n]) || is_digit(s[n]) || s[n] == '_' || s[n] == '-' || s[n] == '$')) ++n;
      return n;
    };
    std::size_t n = part(left_), dots = 0;
    for (std::size_t more = 0; n > 0 && n < left_.size() && left_[n] == '.'; n += 1 + more, ++dots)
      if (more = part(left_.substr(n + 1)); more == 0) break;
    if (dots == 0 && n > 0 && is_digit(left_[0])) n = 0;  // a number alone is no key
    const std::string_view out = left_.substr(0, n);
    left_.remove_prefix(n);
    return out;
  }

  Node element() {
    if (++depth_ > kDeepestValue) refuse("brackets in brackets", fmt::format("at most {} levels", kDeepestValue));
    refuse_functions();
    const char c = left_.empty() ? '\0' : left_.front();
    Node out = c == '[' ? list() : c == '{' ? map() : c == '\'' || c == '"' ? quoted(c) : words();
    --depth_;
    return out;
  }
  void refuse_functions() const {
    const std::size_t n = name_length(left_);
    const std::string_view behind = left_.substr(n);
    const std::size_t blanks = blank_length(behind);
    if (n == 0 || blanks >= behind.size() || behind[blanks] != '(') return;
    constexpr std::array<std::string_view, 7> kSweeps{"choice", "range", "interval", "glob", "sort", "shuffle", "tag"};
    const std::string_view name = left_.substr(0, n);
    if (std::find(kSweeps.begin(), kSweeps.end(), name) != kSweeps.end()) refuse_sweep();
    constexpr std::array<std::string_view, 4> kCasts{"int", "float", "str", "bool"};
    const bool cast = std::find(kCasts.begin(), kCasts.end(), name) != kCasts.end();
    refuse(fmt::format("the function {}()", name), "a value, quoted if it holds brackets",
           cast ? "casts of Hydra's override grammar are not read here" : "Hydra knows no such function");
  }

  Node made(Node::Kind kind) const {
    Node out;
    out.kind = kind;
    out.origin = origin_;
    return out;
  }
  Node list() {
    eat('[');
    skip_blanks();
    Node out = made(Node::Kind::list);
    if (closes(']')) return out;
    for (;;) {
      out.items.push_back(element());
      if (closes(']')) return out;
      if (!closes(',')) refuse_here();
      skip_blanks();
    }
  }
  Node map() {
    eat('{');
    skip_blanks();
    Node out = made(Node::Kind::map);
    if (closes('}')) return out;
    for (;;) {
      const Node key = joined_words(false);
      if (!closes(':')) refuse_here();
      skip_blanks();
      Entry entry{python_text(key), key.kind, origin_.place, element()};
      const auto same = [&](const Entry& e) { return e.key == entry.key && e.key_kind == entry.key_kind; };
      const auto it = std::find_if(out.entries.begin(), out.entries.end(), same);
      if (it != out.entries.end()) {
        it->value = std::move(entry.value);
      } else {
        out.entries.push_back(std::move(entry));
      }
      if (closes('}')) return out;
      if (!closes(',')) refuse_here();
      skip_blanks();
    }
  }
  /// Up to the first quote with an even number of backslashes before it; backslashes before quotes are halved.
  Node quoted(char quote) {
    const std::string_view begin = left_;
    left_.remove_prefix(1);
    std::string out;
    for (;;) {
      if (left_.empty()) {
        left_ = begin;
        refuse("a quote that is not closed", "a closing quote");
      }
      if (left_.front() == quote) break;
      const std::size_t n = std::min(left_.find_first_not_of('\\'), left_.size());
      const bool before_quote = n > 0 && n < left_.size() && left_[n] == quote;
      const std::size_t taken = n == 0 ? 1 : before_quote && n % 2 == 1 ? n + 1 : n;
      const std::string_view run = left_.substr(0, taken);
      if (before_quote) {
        out.append(n / 2, '\\');
        if (n % 2 == 1) out += quote;
      } else {
        out += run;
      }
      left_.remove_prefix(taken);
    }
    left_.remove_prefix(1);
    return as_text(std::move(out));
  }
  Node as_text(std::string text) const {
    Node out = text_node(std::move(text), origin_);
    if (out.text == "???") out.kind = Node::Kind::missing;
    return out;
  }
  Node words() { return joined_words(true); }

  /// ${...} up to the first closing brace; 0: there is none.
  std::size_t link_length() const {
    if (!left_.starts_with("${")) return 0;
    const std::size_t end = left_.find('}');
    return end == std::string_view::npos || end == 2 ? 0 : end + 1;
  }
  /// The next token of a bare value, eaten. nullopt: the value ends here.
  std::optional<std::pair<Word, bool>> token(bool value) {
    constexpr std::string_view kEnds = ",]})(=";
    const char after = next_token();
    if (left_.empty()) return std::nullopt;
    std::size_t n = link_length();
    bool blank = false;
    Word word{WordKind::name, {}};
    if (value && n > 0) {
      word.text = left_.substr(0, n);
    } else if (after == ':' || (after != '\0' && kEnds.find(after) != std::string_view::npos)) {
      if (after != ':' || !value) return std::nullopt;
      n = blank_length(left_) + 1;
      n += blank_length(left_.substr(n));
      word.text = left_.substr(0, n);
      word.kind = WordKind::sign;
    } else {
      const auto found = word_at(left_);
      if (!found) return std::nullopt;
      word = *found;
      blank = word.kind == WordKind::blank;
    }
    left_.remove_prefix(word.text.size());
    return std::pair{word, blank};
  }
  /// Words without quotes: one alone keeps its type, several are a text without the blanks around it.
  Node joined_words(bool value) {
    std::vector<std::pair<Word, bool>> found;
    while (auto next = token(value)) found.push_back(*next);
    while (!found.empty() && found.front().second) found.erase(found.begin());
    while (!found.empty() && found.back().second) found.pop_back();
    if (found.empty()) refuse_here();
    if (found.size() == 1 && found[0].first.kind != WordKind::sign) {
      Node out = value_of(found[0].first);
      if (out.kind == Node::Kind::broken)
        refuse(fmt::format("'{}'", found[0].first.text), "a number of at most 64 bits", out.text);
      out.origin = origin_;
      return out;
    }
    std::string all;
    for (const auto& [word, blank] : found) all += piece_of(word);
    return as_text(std::move(all));
  }

  const std::string& typed_;
  std::string_view left_;
  Origin origin_;
  int depth_ = 0;
};

}  // namespace

Origin origin_of(const std::string& typed, const std::string& key) {
  return {Origin::Kind::override_, {"command line", 0, 0, key}, typed, {}};
}

Override read_override(const std::string& typed) {
  if (typed.size() > kLongestText)
    throw InputError({{"command line", 0, 0, shortened(typed, 40)},
                      fmt::format("{} bytes", typed.size()),
                      fmt::format("at most {} bytes", kLongestText),
                      {},
                      {}});
  return Parser(typed).run();
}

}  // namespace oomplan::compose
