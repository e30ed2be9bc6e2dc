// A model whose checkpoint was converted: "Qwen/Qwen3-30B-A3B:fp8_blocks" is that model, stored in that format.
//
// Formats are rows of models/stored_formats.json: a quantization_config as conversion tools write it.
#pragma once
#include <string>
#include <string_view>
#include <utility>

namespace oomplan {

/// Between a model's name and the format.
inline constexpr char kStoredAs = ':';

inline std::string stored_name(std::string_view model, std::string_view format) {
  return std::string(model) + kStoredAs + std::string(format);
}
/// The model and the format; "": the name has none.
inline std::pair<std::string_view, std::string_view> parts_of_stored(std::string_view name) {
  const auto at = name.rfind(kStoredAs);
  if (at == std::string_view::npos) return {name, {}};
  return {name.substr(0, at), name.substr(at + 1)};
}

}  // namespace oomplan
