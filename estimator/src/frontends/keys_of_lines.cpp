#include "frontends/keys_of_lines.hpp"

#include <algorithm>

namespace oomplan {

std::vector<std::string> keys_of_lines(std::string_view text) {
  std::vector<std::string> out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    const std::size_t colon = line.find(':');
    const auto letter = [](char c) {
      return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    };
    if (colon != std::string_view::npos && colon > 0 && std::all_of(line.begin(), line.begin() + colon, letter))
      out.emplace_back(line.substr(0, colon));
    at = end + 1;
  }
  return out;
}

}  // namespace oomplan
