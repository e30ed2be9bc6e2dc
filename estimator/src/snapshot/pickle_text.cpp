#include "snapshot/pickle_text.hpp"

#include <charconv>

namespace oomplan::snapshot {
namespace {

template <class T>
std::optional<T> whole(std::string_view text) {
  if (text.starts_with('+')) text.remove_prefix(1);
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<std::uint32_t> hexadecimal(std::string_view text, std::size_t at, std::size_t digits) {
  if (at + digits > text.size()) return std::nullopt;
  std::uint32_t value = 0;
  const char* const last = text.data() + at + digits;
  const auto [end, error] = std::from_chars(text.data() + at, last, value, 16);
  if (error != std::errc{} || end != last) return std::nullopt;
  return value;
}

void append_utf8(std::string& out, std::uint32_t point) {
  const auto tail = [&](unsigned shift) { out += static_cast<char>(0x80 | (point >> shift & 0x3F)); };
  if (point < 0x80) {
    out += static_cast<char>(point);
  } else if (point < 0x800) {
    out += static_cast<char>(0xC0 | point >> 6);
    tail(0);
  } else if (point < 0x10000) {
    out += static_cast<char>(0xE0 | point >> 12);
    tail(6);
    tail(0);
  } else {
    out += static_cast<char>(0xF0 | (point >> 18 & 7));
    tail(12);
    tail(6);
    tail(0);
  }
}

}  // namespace

std::optional<std::int64_t> integer_of(std::string_view text) { return whole<std::int64_t>(text); }
std::optional<double> real_of(std::string_view text) { return whole<double>(text); }

std::optional<std::string> quoted_text(std::string_view text) {
  if (text.size() < 2 || (text.front() != '\'' && text.front() != '"') || text.back() != text.front()) return std::nullopt;
  text = text.substr(1, text.size() - 2);
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      out += text[i];
      continue;
    }
    const char escape = text[++i];
    if (escape == 'x') {
      const auto value = hexadecimal(text, i + 1, 2);
      if (!value) return std::nullopt;
      out += static_cast<char>(*value);
      i += 2;
    } else {
      out += escape == 'n' ? '\n' : escape == 't' ? '\t' : escape == 'r' ? '\r' : escape;
    }
  }
  return out;
}

std::optional<std::string> escaped_text(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool escape = text[i] == '\\' && i + 1 < text.size() && (text[i + 1] == 'u' || text[i + 1] == 'U');
    if (!escape) {
      append_utf8(out, static_cast<unsigned char>(text[i]));
      continue;
    }
    const std::size_t digits = text[i + 1] == 'u' ? 4 : 8;
    const auto value = hexadecimal(text, i + 2, digits);
    if (!value || *value > 0x10FFFF) return std::nullopt;
    append_utf8(out, *value);
    i += 1 + digits;
  }
  return out;
}

}  // namespace oomplan::snapshot
