#include "layers/transformers_code.hpp"

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
  code.expert_modules = before("5.0.0");
  return code;
}

}  // namespace oomplan
