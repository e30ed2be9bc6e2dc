// The rules are those of hydra/grammar/OverrideLexer.g4 (Hydra 1.3.2); the lexer of OmegaConf 2.3.0 has the same ones.
#include "frontends/compose/words.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>

#include "frontends/compose/characters.hpp"
#include "frontends/compose/scalar.hpp"

namespace oomplan::compose {
namespace {

using Kind = Node::Kind;

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
bool begins(std::string_view s, std::string_view word) {
  return s.size() >= word.size() && std::equal(word.begin(), word.end(), s.begin(), [](char a, char b) { return a == lower(b); });
}

/// A digit, then digits with single underscores.
std::size_t digits_length(std::string_view s) {
  if (s.empty() || !is_digit(s[0])) return 0;
  std::size_t n = 1;
  while (n < s.size() && (is_digit(s[n]) || (s[n] == '_' && n + 1 < s.size() && is_digit(s[n + 1])))) ++n;
  return n;
}

std::size_t real_length(std::string_view s) {
  const std::size_t sign = !s.empty() && (s[0] == '+' || s[0] == '-') ? 1 : 0;
  s.remove_prefix(sign);
  if (begins(s, "inf") || begins(s, "nan")) return sign + 3;
  const std::size_t whole = unsigned_length(s);
  std::size_t point = 0;
  if (whole < s.size() && s[whole] == '.') {
    const std::size_t behind = digits_length(s.substr(whole + 1));
    if (behind > 0 || whole > 0) point = whole + 1 + behind;
  }
  const std::size_t mantissa = point > 0 ? point : whole;
  if (mantissa > 0 && mantissa < s.size() && lower(s[mantissa]) == 'e') {
    std::size_t at = mantissa + 1;
    if (at < s.size() && (s[at] == '+' || s[at] == '-')) ++at;
    if (const std::size_t n = digits_length(s.substr(at)); n > 0) return sign + at + n;
  }
  return point > 0 ? sign + point : 0;
}

std::size_t integer_length(std::string_view s) {
  const std::size_t sign = !s.empty() && (s[0] == '+' || s[0] == '-') ? 1 : 0;
  const std::size_t n = unsigned_length(s.substr(sign));
  return n == 0 ? 0 : sign + n;
}

std::size_t escape_length(std::string_view s) {
  constexpr std::string_view kEscaped = "\\()[]{}:=, \t";
  std::size_t n = 0;
  while (n + 1 < s.size() && s[n] == '\\' && kEscaped.find(s[n + 1]) != std::string_view::npos) n += 2;
  return n;
}

}  // namespace

std::size_t unsigned_length(std::string_view s) { return !s.empty() && s[0] == '0' ? 1 : digits_length(s); }

std::size_t name_length(std::string_view s) {
  if (s.empty() || !(is_letter(s[0]) || s[0] == '_')) return 0;
  std::size_t n = 1;
  while (n < s.size() && (is_letter(s[n]) || is_digit(s[n]) || s[n] == '_' || s[n] == '-')) ++n;
  return n;
}

std::size_t blank_length(std::string_view s) { return std::min(s.find_first_not_of(" \t"), s.size()); }

std::optional<Word> word_at(std::string_view s) {
  if (s.empty()) return std::nullopt;
  constexpr std::string_view kSigns = "/-\\+.$%*@?|";
  const std::size_t yes = begins(s, "true") ? 4 : begins(s, "false") ? 5 : 0;
  const std::array<std::pair<WordKind, std::size_t>, 8> found{
      {{WordKind::real, real_length(s)},
       {WordKind::integer, integer_length(s)},
       {WordKind::boolean, yes},
       {WordKind::null, begins(s, "null") ? std::size_t{4} : 0},
       {WordKind::sign, kSigns.find(s[0]) != std::string_view::npos ? std::size_t{1} : 0},
       {WordKind::name, name_length(s)},
       {WordKind::escape, escape_length(s)},
       {WordKind::blank, blank_length(s)}}};
  const auto* best = &found[0];
  for (const auto& candidate : found)
    if (candidate.second > best->second) best = &candidate;
  if (best->second == 0) return std::nullopt;
  return Word{best->first, s.substr(0, best->second)};
}

Node value_of(const Word& word) {
  Node out;
  switch (word.kind) {
    case WordKind::null:
      return out;
    case WordKind::boolean:
      out.kind = Kind::boolean;
      out.boolean = lower(word.text[0]) == 't';
      return out;
    case WordKind::integer: {
      const auto value = python_int(without_lines(word.text), 10);
      out.kind = value ? Kind::integer : Kind::broken;
      out.integer = value.value_or(0);
      if (!value) out.text = kTooLarge;
      return out;
    }
    case WordKind::real: {
      const std::size_t sign = word.text[0] == '+' || word.text[0] == '-' ? 1 : 0;
      const double size = word.text[0] == '-' ? -1 : 1;
      out.kind = Kind::real;
      if (lower(word.text[sign]) == 'n') {
        out.real = std::numeric_limits<double>::quiet_NaN();
      } else if (lower(word.text[sign]) == 'i') {
        out.real = size * std::numeric_limits<double>::infinity();
      } else {
        out.real = python_float(without_lines(word.text));
      }
      return out;
    }
    default:
      return text_scalar(piece_of(word));
  }
}

std::string piece_of(const Word& word) {
  if (word.kind != WordKind::escape) return std::string(word.text);
  std::string out;
  for (std::size_t i = 1; i < word.text.size(); i += 2) out += word.text[i];
  return out;
}

}  // namespace oomplan::compose
