#include "frontends/servers/serve_quantization.hpp"

#include <algorithm>
#include <array>

#include "catalog/facts.hpp"

namespace oomplan {
namespace {

constexpr EngineKind kV = EngineKind::vllm, kS = EngineKind::sglang;
using F = OnlineFormat;

// vllm/model_executor/layers/quantization/__init__.py of 0.9.2 to 0.24.0; bitsandbytes became a plugin behind 0.24 (073c510c91).
// sglang/srt/server_args.py QUANTIZATION_CHOICES and srt/layers/quantization/{fp8,w8a8_fp8}.py, 0.5.10; w8a8_fp8 since 0dd6cda288
// (9 March 2025).
constexpr std::array<OnlineName, 11> kOnlineNames{{
    {kV, "fp8", F::none, "0", ""},
    {kV, "fp8_per_tensor", F::none, "0.20", ""},
    {kV, "fp8_per_block", F::fp8_per_block, "0.20", ""},
    {kV, "fp8_per_channel", F::fp8_per_channel, "0.24", ""},
    {kV, "mxfp8", F::mxfp8, "0.19", ""},
    {kV, "experts_int8", F::experts_int8, "0", ""},
    {kV, "int8_per_channel_weight_only", F::experts_int8, "0.20", ""},
    {kV, "bitsandbytes", F::bitsandbytes, "0", "0.25"},
    {kS, "fp8", F::none, "0", ""},
    {kS, "w8a8_fp8", F::fp8_per_channel, "0.4.4", ""},
    {kS, "bitsandbytes", F::bitsandbytes, "0", ""},
}};

constexpr std::string_view kOfCheckpoints[] = {"awq",          "awq_marlin",     "gptq",
                                               "gptq_marlin",  "marlin",         "gptq_marlin_24",
                                               "auto_awq",     "auto_gptq",      "compressed-tensors",
                                               "modelopt_fp4", "modelopt_mixed", "moe_wna16",
                                               "mxfp4",        "gpt_oss_mxfp4",  "fbgemm_fp8",
                                               "gguf",         "w8a8_int8",      "qoq",
                                               "w4afp8",       "petit_nvfp4",    "quark",
                                               "auto-round",   "blockwise_int8"};

bool has(const OnlineName& row, const std::string& version) {
  return compare_versions(version, row.from) >= 0 && (row.until.empty() || compare_versions(version, row.until) < 0);
}

}  // namespace

const OnlineName* online_name(EngineKind engine, std::string_view name) {
  const auto found = std::find_if(kOnlineNames.begin(), kOnlineNames.end(),
                                  [&](const OnlineName& r) { return r.engine == engine && r.name == name; });
  return found == kOnlineNames.end() ? nullptr : &*found;
}

std::vector<std::string> online_names(EngineKind engine, const std::string& version) {
  std::vector<std::string> out;
  for (const OnlineName& row : kOnlineNames)
    if (row.engine == engine && has(row, version)) out.emplace_back(row.name);
  return out;
}

bool names_checkpoint_format(std::string_view name) {
  return std::find(std::begin(kOfCheckpoints), std::end(kOfCheckpoints), name) != std::end(kOfCheckpoints);
}

}  // namespace oomplan
