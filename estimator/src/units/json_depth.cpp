#include "units/json_depth.hpp"

#include <algorithm>

#include <fmt/format.h>

namespace oomplan {

int json_depth(std::string_view text) {
  int open = 0, deepest = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted && c == '\\') {
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted && (c == '[' || c == '{')) {
      deepest = std::max(deepest, ++open);
    } else if (!quoted && (c == ']' || c == '}')) {
      --open;
    }
  }
  return deepest;
}

std::string too_deep(std::string_view text) {
  return json_depth(text) > kMaxJsonDepth ? fmt::format("nesting of more than {} levels", kMaxJsonDepth) : "";
}

}  // namespace oomplan
