#include "layers/liger_code.hpp"

#include "catalog/facts.hpp"

namespace oomplan {

std::optional<LigerCode> liger_code(std::string_view version) {
  if (version.empty()) version = kNewestLiger;
  const auto before = [&](std::string_view release) { return compare_versions(version, release) < 0; };
  if (version.front() < '0' || version.front() > '9' || before("0.2.1")) return std::nullopt;
  LigerCode code;
  code.norm_gradient_by_row = before("0.4.0");
  code.head_upcasts = before("0.5.0");
  code.head_scales = before("0.5.3");
  code.head_sum = before("0.6.2") ? HeadSum::in_place : HeadSum::product;
  return code;
}

}  // namespace oomplan
