// Written from the behaviour of omegaconf/grammar (OmegaConf 2.3.0): its lexer has a mode for plain text, one for values, one for
// the inside of ${...} and one for each quote; here each mode is a function that reads as far as its mode goes.
#include "frontends/compose/grammar.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "frontends/compose/words.hpp"
#include "units/utf8.hpp"

namespace oomplan::compose {
namespace {

class Reader {
 public:
  explicit Reader(std::string_view all) : all_(all) {}

  Text whole_text() { return text('\0'); }
  Argument whole_element() {
    Argument out = element();
    if (!left().empty()) refuse();
    return out;
  }

 private:
  std::string_view left() const { return all_.substr(at_); }
  bool next_is(std::string_view s) const { return left().starts_with(s); }
  char next() const { return at_ < all_.size() ? all_[at_] : '\0'; }
  [[noreturn]] void refuse(std::string why = {}) const {
    if (why.empty()) why = left().empty() ? "it ends too early" : fmt::format("'{}' cannot stand there", character_at(all_, at_));
    throw GrammarFault{at_, std::move(why)};
  }
  void skip_blanks() { at_ += blank_length(left()); }
  void expect(char c) {
    if (next() != c || left().empty()) refuse();
    ++at_;
  }

  static void add(Text& to, std::string_view literal) {
    if (literal.empty()) return;
    if (to.empty() || !to.back().link.empty()) to.emplace_back();
    to.back().text += literal;
  }
  void add_link(Text& to) {
    to.emplace_back();
    to.back().link.push_back(interpolation());
  }

  /// Up to the closing quote, which is eaten, or the end (quote 0).
  Text text(char quote) {
    Text out;
    while (quote == '\0' ? !left().empty() : next() != quote || left().empty()) {
      if (left().empty()) refuse("a quote is not closed");
      if (next() == '\\') {
        backslashes(out, quote);
      } else if (next_is("${")) {
        add_link(out);
      } else {
        add(out, left().substr(0, 1));
        ++at_;
      }
    }
    if (quote != '\0') ++at_;
    return out;
  }
  /// Backslashes count only before a link (and in quotes before the quote): half of them stay, an odd one escapes.
  void backslashes(Text& out, char quote) {
    const std::size_t n = std::min(left().find_first_not_of('\\'), left().size());
    const std::string_view run = left().substr(0, n);
    at_ += n;
    const bool before_quote = quote != '\0' && next() == quote;
    if (!next_is("${") && !before_quote) return add(out, run);
    add(out, run.substr(0, n / 2));
    if (n % 2 == 0) return;
    add(out, before_quote ? left().substr(0, 1) : left().substr(0, 2));
    at_ += before_quote ? 1 : 2;
  }

  Interpolation interpolation() {
    if (++depth_ > kDeepestLink) refuse(fmt::format("more than {} links in each other", kDeepestLink));
    at_ += 2;
    skip_blanks();
    Interpolation out;
    for (;;) {
      const std::size_t blanks = blank_length(left());
      const char c = at_ + blanks < all_.size() ? all_[at_ + blanks] : '\0';
      if (c == ':' || c == '}') {
        at_ += blanks + 1;
        out.resolver = c == ':';
        break;
      }
      word_of_link(out.words);
    }
    if (!(out.resolver ? is_name(out.words) : is_path(out.words))) refuse("this is no key");
    if (out.resolver) {
      skip_blanks();
      out.arguments = sequence('}');
    }
    --depth_;
    return out;
  }
  /// One word a piece: "." "[" "]", a key, or a link.
  void word_of_link(Text& words) {
    if (next_is("${")) return add_link(words);
    constexpr std::string_view kOperators = ".[]", kNoKey = "\\{}()[]:. \t'\"";
    const bool alone = !left().empty() && kOperators.find(next()) != std::string_view::npos;
    const std::size_t n = alone ? 1 : std::min(left().find_first_of(kNoKey), left().size());
    if (n == 0) refuse();
    words.push_back({std::string(left().substr(0, n)), {}});
    at_ += n;
  }
  static bool is(const Piece& piece, std::string_view word) { return piece.link.empty() && piece.text == word; }
  static bool is_key(const Piece& piece) { return !is(piece, ".") && !is(piece, "[") && !is(piece, "]"); }
  /// .* (key | [key]) (.key | [key])*
  static bool is_path(const Text& words) {
    std::size_t i = 0;
    const auto take = [&](std::string_view word) {
      const bool found = i < words.size() && is(words[i], word);
      i += found ? 1 : 0;
      return found;
    };
    while (take(".")) continue;
    for (bool first = true; first || i < words.size(); first = false) {
      const bool bracket = take("[");
      if (!bracket && !first && !take(".")) return false;
      if (i >= words.size() || !is_key(words[i])) return false;
      ++i;
      if (bracket && !take("]")) return false;
    }
    return true;
  }
  /// name(.name)*
  static bool is_name(const Text& words) {
    for (std::size_t i = 0; i < words.size(); ++i) {
      const Piece& word = words[i];
      const bool name = !word.link.empty() || (!word.text.empty() && name_length(word.text) == word.text.size());
      if (i % 2 == 0 ? !name : !is(word, ".")) return false;
    }
    return words.size() % 2 == 1;
  }

  /// Arguments up to `close`, which is eaten with the blanks before it. An empty one between commas is an empty text.
  std::vector<Argument> sequence(char close) {
    std::vector<Argument> out;
    if (closes(close)) return out;
    for (;;) {
      out.push_back(next_token() == ',' || next_token() == close ? empty_text() : element());
      if (closes(close)) return out;
      skip_blanks();
      expect(',');
      skip_blanks();
    }
  }
  static Argument empty_text() {
    Argument out;
    out.value = text_node({});
    return out;
  }
  /// The character behind blanks.
  char next_token() const {
    const std::size_t blanks = blank_length(left());
    return at_ + blanks < all_.size() ? all_[at_ + blanks] : '\0';
  }
  bool closes(char close) {
    if (next_token() != close) return false;
    skip_blanks();
    ++at_;
    return true;
  }

  Argument element() {
    if (++depth_ > kDeepestLink) refuse(fmt::format("more than {} brackets in each other", kDeepestLink));
    Argument out;
    const char c = next();
    if (c == '\'' || c == '"') {
      ++at_;
      out.kind = Argument::Kind::text;
      out.text = text(c);
    } else if (c == '[') {
      ++at_;
      skip_blanks();
      out.kind = Argument::Kind::list;
      out.items = sequence(']');
    } else if (c == '{') {
      out = map();
    } else {
      out = words();
    }
    --depth_;
    return out;
  }
  Argument map() {
    expect('{');
    skip_blanks();
    Argument out;
    out.kind = Argument::Kind::map;
    if (closes('}')) return out;
    for (;;) {
      out.entries.push_back({map_key(), {}});
      out.entries.back().value = element();
      if (closes('}')) return out;
      skip_blanks();
      expect(',');
      skip_blanks();
    }
  }
  /// With the colon behind it.
  Node map_key() {
    std::vector<Word> found;
    while (next_token() != ':') {
      const auto word = word_at(left());
      if (!word || (word->kind == WordKind::blank && is_end(all_.substr(at_ + word->text.size())))) refuse();
      found.push_back(*word);
      at_ += word->text.size();
    }
    if (found.empty()) refuse();
    closes(':');
    skip_blanks();
    if (found.size() == 1) return checked(found[0]);
    std::string all;
    for (const auto& word : found) all += piece_of(word);
    return text_node(std::move(all));
  }
  static bool is_end(std::string_view s) { return s.empty() || s[0] == ',' || s[0] == ']' || s[0] == '}'; }
  Node checked(const Word& word) const {
    Node out = value_of(word);
    if (out.kind == Node::Kind::broken) refuse(out.text);
    return out;
  }

  /// Words, colons and links up to a comma, a closing bracket or the end; blanks before those belong to them.
  Argument words() {
    Argument out;
    std::size_t count = 0, links_and_colons = 0;
    while (!is_end(left())) {
      const char after = next_token();
      if (next() != after && (after == ',' || after == ']' || after == '}')) break;
      ++count;
      if (next_is("${")) {
        add_link(out.text);
        ++links_and_colons;
      } else if (after == ':') {
        ++links_and_colons;
        const std::size_t begin = at_;
        closes(':');
        skip_blanks();
        add(out.text, all_.substr(begin, at_ - begin));
      } else {
        const auto word = word_at(left());
        if (!word) refuse();
        if (count == 1) out.value = checked(*word);
        add(out.text, piece_of(*word));
        at_ += word->text.size();
      }
    }
    if (count == 0) refuse();
    if (count > 1 || links_and_colons > 0) out.kind = Argument::Kind::text;
    return out;
  }

  std::string_view all_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

bool has_interpolation(std::string_view text) { return text.find("${") != std::string_view::npos; }

std::variant<Text, GrammarFault> read_text(std::string_view text) {
  try {
    return Reader(text).whole_text();
  } catch (const GrammarFault& fault) {
    return fault;
  }
}

std::variant<Argument, GrammarFault> read_element(std::string_view text) {
  try {
    return Reader(text).whole_element();
  } catch (const GrammarFault& fault) {
    return fault;
  }
}

}  // namespace oomplan::compose
