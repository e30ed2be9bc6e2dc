#include "frontends/launch/text.hpp"

#include <algorithm>

namespace oomplan::launch {

Text text_of(std::string_view bytes, char32_t flags) {
  Text out;
  out.reserve(bytes.size());
  for (const char c : bytes) out += unit_of(c) | flags;
  return out;
}

Text plain(const Text& text) {
  Text out = text;
  for (char32_t& unit : out) unit &= ~kFlags;
  return out;
}

bool is_known(const Text& text) { return std::none_of(text.begin(), text.end(), is_unknown); }

std::string bytes_of(const Text& text) {
  std::string out;
  out.reserve(text.size());
  for (const char32_t unit : text)
    if (!is_unknown(unit)) out += byte_of(unit);
  return out;
}

bool is_open(const Text& text, const std::vector<Unknown>& unknowns) {
  return std::any_of(text.begin(), text.end(),
                     [&](char32_t unit) { return is_unknown(unit) && unknowns[index_of(unit)].kind != Unknown::Kind::unset; });
}

std::optional<std::string> without_zero_bytes(std::optional<std::string> text) {
  if (text) std::erase(*text, '\0');
  return text;
}

}  // namespace oomplan::launch
