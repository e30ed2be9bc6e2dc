#include "inference/cache_format.hpp"

#include <algorithm>

#include "catalog/facts.hpp"
#include "job/auto_cache.hpp"

namespace oomplan {
namespace {

constexpr EngineKind kV = EngineKind::vllm, kS = EngineKind::sglang;

/// Releases whose `auto` is what a checkpoint's quantization_config asks for. `always`: whatever --kv-cache-dtype says.
struct FollowsCheckpoint {
  EngineKind engine;
  std::string_view from, until;
  std::string_view method;  ///< how quant_method begins
  DType format;             ///< that it asks for
  bool always;
};

// vLLM: vllm/utils/torch_utils.py resolve_kv_cache_dtype_string and MODELOPT_TO_VLLM_KV_CACHE_DTYPE_MAP: not in 0.13.0, fp8 from
// 0.14.1 on, nvfp4 not in 0.19.1, from 0.21.0 on. model_executor/layers/attention/attention.py Attention.__init__
// (kv_cache_scheme of compressed-tensors): not in 0.14.1, whatever was asked in 0.17.1 to 0.21.0, of `auto` alone in 0.24.0.
// Before these the scales were read and the cache stayed in the model's format. SGLang: srt/model_executor/model_runner.py
// configure_kv_cache_dtype, kv_cache_quant_algo of ModelOpt: not in 0.5.2, in 0.5.3 to 0.5.18; compressed-tensors has no such
// attribute.
constexpr FollowsCheckpoint kFollows[] = {
    {kV, "0.14", "", "modelopt", DType::fp8, false},      {kV, "0.21", "", "modelopt", DType::nvfp4, false},
    {kV, "0.16", "0.24", "compressed", DType::fp8, true}, {kV, "0.24", "", "compressed", DType::fp8, false},
    {kS, "0.5.3", "", "modelopt", DType::fp8, false},
};

/// A release that is not stated is the newest.
bool within(std::string_view version, std::string_view from, std::string_view until) {
  if (version.empty()) return until.empty();
  return compare_versions(version, from) >= 0 && (until.empty() || compare_versions(version, until) < 0);
}

template <class Holds>
bool any_mixer(const Architecture& a, Holds holds) {
  return std::any_of(a.runs.begin(), a.runs.end(), [&](const LayerRun& r) { return holds(r.layer.mixer); });
}

const FollowsCheckpoint* checkpoints_choice(const Architecture& a, EngineKind engine, const Server& server) {
  const Quantization& q = a.quantization;
  const auto asked = std::find_if(q.parts.begin(), q.parts.end(), [](const QuantizedModules& p) {
    return p.targets.size() == 1 && p.targets[0] == kCacheTarget;
  });
  if (!server.as_stored || asked == q.parts.end()) return nullptr;
  // vLLM's compressed-tensors rule is in its Attention, which latent attention is none of
  const bool latent = any_mixer(a, [](const Mixer& m) { return m.kind == MixerKind::mla; });
  for (const FollowsCheckpoint& row : kFollows) {
    const bool named = std::string_view(q.method).starts_with(row.method) ||
                       (row.method == "modelopt" && (q.method == "NVFP4" || q.method == "FP8"));  // hf_quant_config.json
    if (row.engine != engine || !named || row.format != asked->format.dtype || !within(server.version, row.from, row.until))
      continue;
    if (row.method == "compressed" && latent) continue;
    return &row;
  }
  return nullptr;
}

/// DeepSeek V3.2 and GLM-5 on sm100 and later: sglang/srt/server_args.py, is_deepseek_nsa, 0.5.3 to 0.5.18 (in 0.5.4 whatever was
/// asked, later of `auto`); arg_groups/overrides.py _dsa_kv_cache_dtype_default, 0.5.18.
bool sparse_in_fp8(const Architecture& a, EngineKind engine, std::string_view sm) {
  const bool blackwell = sm.starts_with("sm10") || sm.starts_with("sm11") || sm.starts_with("sm12");
  return engine == kS && blackwell && any_mixer(a, [](const Mixer& m) { return m.index_heads > 0; });
}

}  // namespace

DType compute_format(const Architecture& a, DType weights) {
  if (!in_8_bits_or_less(weights)) return weights;
  return a.dtype == DType::fp16 ? DType::fp16 : DType::bf16;
}

DType cache_format(const Architecture& a, EngineKind engine, const Server& server, std::string_view sm) {
  const FollowsCheckpoint* const row = checkpoints_choice(a, engine, server);
  if (server.kv != kAutoCache && (row == nullptr || !row->always)) return server.kv;
  if (sparse_in_fp8(a, engine, sm)) return DType::fp8;
  return row != nullptr ? row->format : compute_format(a, server.weights);
}

Server with_cache_format(const Architecture& a, EngineKind engine, const Server& server, std::string_view sm) {
  Server out = server;
  out.kv = cache_format(a, engine, server, sm);
  return out;
}

}  // namespace oomplan
