// ASCII letters and digits, whatever the locale, and numbers without Python's separators.
#pragma once
#include <string>
#include <string_view>

namespace oomplan::compose {

inline bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
inline bool is_digit(char c) { return c >= '0' && c <= '9'; }
/// "1_000" as "1000".
inline std::string without_lines(std::string_view text) {
  std::string out(text);
  std::erase(out, '_');
  return out;
}

}  // namespace oomplan::compose
