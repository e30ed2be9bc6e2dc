#include "catalog/wide_routers.hpp"

#include <algorithm>
#include <array>

#include "catalog/facts.hpp"

namespace oomplan {
namespace {

constexpr std::string_view kDescribed = "5.23.0";

// `_keep_in_fp32_modules_strict` of models/*/modeling_*.py and the dtype that the router's module makes its weight in; 5.23, 5.24
constexpr std::array kWideRouters{
    WideRouter{"ernie4_5_moe", "4.0.0", true}, WideRouter{"hunyuan_v1_moe", "4.0.0"}, WideRouter{"deepseek_v2", "5.24.0"},
    WideRouter{"deepseek_v3", "5.24.0"},       WideRouter{"deepseek_v32", "5.24.0"},  WideRouter{"dots1", "5.24.0"},
    WideRouter{"exaone_moe", "5.24.0"},        WideRouter{"glm4_moe", "5.24.0"},      WideRouter{"glm4_moe_lite", "5.24.0"},
    WideRouter{"glm_moe_dsa", "5.24.0"},       WideRouter{"hy_v3", "5.24.0"},         WideRouter{"mimo_v2_flash", "5.24.0"},
    WideRouter{"nemotron_h", "5.24.0"},        WideRouter{"solar_open", "5.24.0"},
};

}  // namespace

const WideRouter* wide_router(const Architecture& a, std::string_view transformers) {
  const bool routes =
      std::any_of(a.runs.begin(), a.runs.end(), [](const LayerRun& run) { return run.layer.feed_forward.experts > 0; });
  if (!routes) return nullptr;
  const auto* const row =
      std::find_if(kWideRouters.begin(), kWideRouters.end(), [&](const WideRouter& r) { return r.family == a.family; });
  if (row == kWideRouters.end()) return nullptr;
  return compare_versions(transformers.empty() ? kDescribed : transformers, row->since) < 0 ? nullptr : &*row;
}

}  // namespace oomplan
