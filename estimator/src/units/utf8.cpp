#include "units/utf8.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace oomplan {
namespace {

/// Code points that end a line or turn the direction of what follows: Unicode 16, 9.2 and UAX 9. In UTF-8.
constexpr std::string_view kTurning[] = {
    "\u2028", "\u2029",                                // separators of lines and paragraphs
    "\u061C", "\u200E", "\u200F",                      // marks
    "\u202A", "\u202B", "\u202C", "\u202D", "\u202E",  // embeddings and overrides
    "\u2066", "\u2067", "\u2068", "\u2069",            // isolates
};

bool turns(std::string_view character) {
  return std::find(std::begin(kTurning), std::end(kTurning), character) != std::end(kTurning);
}

bool safe(std::string_view character) {
  const auto first = static_cast<unsigned char>(character[0]);
  if (character.size() == 1) return first >= 0x20 && first != 0x7F;
  if (first == 0xC2 && static_cast<unsigned char>(character[1]) < 0xA0) return false;  // C1 controls
  return !turns(character);
}

}  // namespace

std::size_t utf8_length(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  const std::size_t n = first < 0x80                    ? 1
                        : first >= 0xC2 && first < 0xE0 ? 2
                        : first >= 0xE0 && first < 0xF0 ? 3
                        : first >= 0xF0 && first < 0xF5 ? 4
                                                        : 0;
  if (n == 0 || at + n > text.size()) return 0;
  for (std::size_t i = 1; i < n; ++i)
    if ((byte(at + i) & 0xC0) != 0x80) return 0;
  if (n == 3 && ((first == 0xE0 && byte(at + 1) < 0xA0) || (first == 0xED && byte(at + 1) >= 0xA0))) return 0;
  if (n == 4 && ((first == 0xF0 && byte(at + 1) < 0x90) || (first == 0xF4 && byte(at + 1) >= 0x90))) return 0;
  return n;
}

std::string_view character_at(std::string_view text, std::size_t at) {
  return at < text.size() ? text.substr(at, std::max<std::size_t>(1, utf8_length(text, at))) : std::string_view();
}

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t n = utf8_length(text, i);
    if (n > 0 && safe(text.substr(i, n)))
      out.append(text.substr(i, n));
    else
      out += text[i] == '\t' || text[i] == '\n' ? ' ' : '?';
    i += std::max<std::size_t>(1, n);
  }
  return out;
}

std::string shortened(std::string_view text, std::size_t longest) {
  if (text.size() <= longest) return std::string(text);
  std::size_t end = 0;
  for (std::size_t n = character_at(text, 0).size(); end + n <= longest; n = character_at(text, end).size()) end += n;
  return std::string(text.substr(0, end)) + "...";
}

std::string with_unsafe_escaped(std::string json) {
  const auto unsafe = [](std::string_view one) { return one != "\n" && !safe(one); };
  std::string out;
  out.reserve(json.size());
  for (std::size_t i = 0; i < json.size();) {
    const std::string_view one = character_at(json, i);
    if (unsafe(one)) {
      unsigned point = static_cast<unsigned char>(one[0]) & (one.size() == 1 ? 0x7FU : one.size() == 2 ? 0x1FU : 0x0FU);
      for (const char c : one.substr(1)) point = point << 6 | (static_cast<unsigned char>(c) & 0x3FU);
      out += fmt::format("\\u{:04x}", point);
    } else {
      out += one;
    }
    i += one.size();
  }
  return out;
}

}  // namespace oomplan
