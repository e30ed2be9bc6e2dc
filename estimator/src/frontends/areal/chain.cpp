#include "frontends/areal/chain.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "frontends/compose/characters.hpp"
#include "units/enums.hpp"
#include "units/utf8.hpp"

namespace oomplan::areal {
namespace {

constexpr std::string_view kInferenceLetters = "dtp", kTrainingLetters = "pdtce", kAttentionLetters = "cdtp",
                           kExpertLetters = "detp";

using compose::is_digit;

bool is_letter(char c) { return compose::is_letter(c) || c == '_'; }
bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f'; }
bool contains(const std::vector<std::string>& all, std::string_view one) {
  return std::find(all.begin(), all.end(), one) != all.end();
}

/// Reads left to right; the first thing that is wrong ends it.
class ChainReader {
 public:
  ChainReader(std::string_view text, const Grammar& grammar) : text_(text), grammar_(grammar) {}
  Chain read() {
    groups();
    if (good() && peek() != '\0') fail(fmt::format("'{}' is not expected", character_at(text_, at_)));
    if (good()) check_shape();
    return std::move(out_);
  }

 private:
  bool good() const { return out_.why.empty(); }
  void fail(std::string_view why) {
    if (good()) out_.why = fmt::format("{} (at character {})", why, at_ + 1);
  }
  /// The next character that is no space; '\0' at the end.
  char peek() {
    while (at_ < text_.size() && is_space(text_[at_])) ++at_;
    return at_ < text_.size() ? text_[at_] : '\0';
  }
  bool eat(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (good() && !eat(c)) fail(fmt::format("'{}' is expected", c));
  }
  std::string_view peek_word() {
    peek();
    std::size_t end = at_;
    while (end < text_.size() && is_letter(text_[end])) ++end;
    return text_.substr(at_, end - at_);
  }
  bool eat_word(std::string_view word) {
    if (peek_word() != word) return false;
    at_ += word.size();
    return true;
  }
  void expect_word(std::string_view word) {
    if (good() && !eat_word(word)) fail(fmt::format("'{}' is expected", word));
  }

  void groups() {
    do {
      if (!out_.groups.empty() && evaluation()) return;
      out_.groups.emplace_back();
      do out_.groups.back().push_back(link());
      while (good() && eat('|'));
    } while (good() && eat('+'));
  }

  bool evaluation() {
    const std::string_view word = peek_word();
    if (word != "eval" && word != "cpu") return false;
    if (!grammar_.evaluation) fail("'+eval' and '+cpu' are of 0.3.1 to 0.5.3");
    at_ += word.size();
    out_.evaluation = true;
    return true;
  }

  Link link() {
    Link out;
    const char c = peek();
    if (c == '\0') {
      fail("a part is missing");
    } else if (c == '(' || peek_word() == "attn") {
      hybrid(out);
    } else if (c == '[' && grammar_.names) {
      out.name = name();
      expect(':');
      out.dims = dims(kTrainingLetters, "training");
    } else if (const std::string_view word = peek_word();
               contains(grammar_.inference, word) || contains(grammar_.trainers, word)) {
      out.backend = word;
      out.inference = contains(grammar_.inference, word);
      at_ += word.size();
      behind_backend(out);
    } else if (is_unknown_backend(word)) {
      unknown_backend(word);
    } else {
      out.dims = dims(kTrainingLetters, "training");
    }
    return out;
  }

  void behind_backend(Link& out) {
    if (grammar_.names && peek() == '[') out.name = name();
    const bool dot = good() && grammar_.dot && out.inference && eat('.');
    if (good() && !dot && peek() == '.') fail(fmt::format("a colon stands behind '{}', not a dot", out.backend));
    if (!dot) expect(':');
    if (!good()) return;
    if (!out.inference && (peek() == '(' || peek_word() == "attn")) {
      if (!out.name.empty() && !grammar_.named_hybrid) fail("a part with attn: and ffn: cannot be named");
      return hybrid(out);
    }
    out.dims = dims(out.inference ? kInferenceLetters : kTrainingLetters, out.inference ? "inference" : "training");
  }

  bool is_unknown_backend(std::string_view word) const {
    std::size_t end = at_ + word.size();
    while (end < text_.size() && is_space(text_[end])) ++end;
    return !word.empty() && end < text_.size() && (text_[end] == ':' || text_[end] == '.' || text_[end] == '[');
  }

  void unknown_backend(std::string_view word) {
    std::vector<std::string> valid = grammar_.inference;
    valid.insert(valid.end(), grammar_.trainers.begin(), grammar_.trainers.end());
    fail(fmt::format("'{}' is not one of the backends {}", word, list_of(valid)));
    const std::string meant = nearest(word, valid);
    if (!meant.empty()) out_.nearest = fmt::format("{}{}{}", text_.substr(0, at_), meant, text_.substr(at_ + word.size()));
  }

  std::string name() {
    expect('[');
    peek();
    const std::size_t start = at_;
    while (at_ < text_.size() && (is_letter(text_[at_]) || (at_ > start && is_digit(text_[at_])))) ++at_;
    if (at_ == start) fail("a name starts with a letter or '_'");
    std::string out(text_.substr(start, at_ - start));
    expect(']');
    return out;
  }

  void hybrid(Link& out) {
    eat('(');
    expect_word("attn");
    expect(':');
    out.dims = dims(kAttentionLetters, "attn:");
    expect('|');
    expect_word("ffn");
    expect(':');
    out.experts = dims(kExpertLetters, "ffn:");
    eat(')');
  }

  Dims dims(std::string_view allowed, std::string_view where) {
    Dims out;
    while (good()) {
      const char letter = peek();
      if (letter == '\0' || allowed.find(letter) == std::string_view::npos) break;
      ++at_;
      peek();
      std::string_view rest = text_.substr(at_);
      const std::string why = take_degree(rest, letter, out.degree[letter]);
      if (!why.empty()) fail(why);
      at_ = text_.size() - rest.size();
    }
    const char next = peek();
    if (is_letter(next) || is_digit(next)) {
      const std::string_view meaning = allowed.find(next) == std::string_view::npos ? meaning_of_letter(next) : "";
      fail(!meaning.empty() ? std::string(meaning)
                            : fmt::format("'{}' is not one of the letters {} of {}", next, fmt::join(allowed, ", "), where));
    } else if (out.degree.empty()) {
      fail(fmt::format("no letters of {}", where));
    }
    return out;
  }

  /// What the grammar demands of the whole. Before names there are two parts at most, inference first.
  void check_shape() {
    const auto& groups = out_.groups;
    const bool one_server = groups.size() == 1 && groups[0].size() == 1 && groups[0][0].inference;
    if (out_.evaluation && !one_server) fail("'+eval' and '+cpu' stand behind one part of inference");
    if (grammar_.names) return;
    std::vector<bool> inference;
    for (const auto& group : groups)
      for (const Link& link : group) inference.push_back(link.inference);
    if (inference.size() > 2 || (inference.size() == 2 && !(inference[0] && !inference[1])))
      fail("before 0.4.1 there is one part, or one of inference and behind it one of training");
  }

  std::string_view text_;
  const Grammar& grammar_;
  std::size_t at_ = 0;
  Chain out_;
};

}  // namespace

Chain read_chain(std::string_view text, const Grammar& grammar) { return ChainReader(text, grammar).read(); }

}  // namespace oomplan::areal
