// Oumi reads its files without interpolations: "${X}" is a text (src/oumi/core/configs/base_config.py,
// _read_config_without_interpolation: a backslash in front of it).
#pragma once
#include <string>

namespace oomplan::oumi {

inline std::string escaped(const std::string& text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text.compare(i, 2, "${") == 0 && (i == 0 || text[i - 1] != '\\')) out += '\\';
    out += text[i];
  }
  return out;
}

inline std::string unescaped(std::string text) {
  for (std::size_t at = text.find("\\${"); at != std::string::npos; at = text.find("\\${", at + 2)) text.erase(at, 1);
  return text;
}

}  // namespace oomplan::oumi
