#include "job/int8_rules.hpp"

#include <fmt/format.h>

#include "catalog/facts.hpp"

namespace oomplan {
namespace {

/// Earlier releases reorder the matrices of 8 bits for the GPU at hand.
constexpr std::string_view kOldestRelease = "0.45.0";
/// Earlier releases leave in a layer what outliers met, until its next pass.
constexpr std::string_view kOldestOutliers = "0.46.0";

}  // namespace

void check_int8(const Trainer& t, EngineKind engine, std::vector<BaseProblem>& out) {
  const QuantisedBase& base = t.lora.base;
  if (base.format != BaseFormat::int8) {
    if (base.outliers > 0)
      out.push_back({"lora.base_outliers", fmt::format("{}", base.outliers), "0, or lora.base: int8",
                     "only LLM.int8 multiplies columns with outliers apart"});
    return;
  }
  const auto refuse = [&](std::string why) { out.push_back({"lora.base", "'int8'", "nf4, or full", std::move(why)}); };
  if (base.double_quant) out.push_back({"lora.base_double_quant", "true", "false", "it is a setting of 4 bits"});
  if (engine == EngineKind::fsdp1) refuse("not supported yet: an 8-bit base in a flat parameter");
  if (t.loop.of_framework) refuse("not supported yet: an 8-bit base beyond framework: torch");
  if (base.version.empty()) return;
  if (base.outliers > 0 && compare_versions(base.version, kOldestOutliers) < 0)
    out.push_back(
        {"lora.base_outliers", fmt::format("{}", base.outliers), "0", "not supported yet: outliers in releases before 0.46"});
  if (compare_versions(base.version, kOldestRelease) < 0)
    out.push_back({"lora.bitsandbytes", fmt::format("'{}'", base.version), fmt::format("{} or later", kOldestRelease),
                   "not supported yet: releases whose 8-bit matrices are reordered for the GPU"});
}

}  // namespace oomplan
