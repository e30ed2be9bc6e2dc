#include "layers/transformers_code.hpp"

#include <algorithm>
#include <array>

#include "catalog/facts.hpp"

namespace oomplan {

std::optional<TransformersCode> transformers_code(std::string_view version) {
  if (version.empty()) return TransformersCode{};
  const auto before = [&](std::string_view release) { return compare_versions(version, release) < 0; };
  if (version.front() < '0' || version.front() > '9' || before("4.37.0")) return std::nullopt;
  TransformersCode code;
  code.widens_logits = before("4.46.0");
  code.copies_shifted = before("4.49.0");
  code.expands_keys = before("4.48.0");
  code.checkpoints_units = before("4.52.0");
  code.expands_single = before("5.24.0");
  code.expert_modules = before("5.0.0");
  return code;
}

namespace {

struct LastTables {
  std::string_view family;
  std::string_view before;  ///< the release that has none
};

// models/*/modeling_*.py of 4.37.2 to 4.48.3: register_buffer("cos_cached") and ("_cos_cached")
constexpr std::array kTables{
    LastTables{"llama", "4.41.0"},    LastTables{"mistral", "4.42.0"},   LastTables{"mixtral", "4.48.0"},
    LastTables{"qwen2", "4.45.0"},    LastTables{"qwen2_moe", "4.45.0"}, LastTables{"starcoder2", "4.45.0"},
    LastTables{"stablelm", "4.45.0"}, LastTables{"phi", "4.45.0"},
};

}  // namespace

bool registers_rotary_tables(std::string_view version, std::string_view family) {
  if (version.empty()) return false;
  const auto row = std::find_if(kTables.begin(), kTables.end(), [&](const LastTables& t) { return t.family == family; });
  return row != kTables.end() && compare_versions(version, row->before) < 0;
}

}  // namespace oomplan
