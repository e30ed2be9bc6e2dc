#include "inference/cache_format.hpp"

#include <algorithm>
#include <cstdint>
#include <string>

#include "job/names.hpp"

namespace oomplan {
namespace {

/// What a release does with the format that a checkpoint's quantization_config asks for.
enum class Followed : std::uint8_t { no, with_auto, always };  // always: whatever --kv-cache-dtype says

template <class Holds>
bool any_mixer(const Architecture& a, Holds holds) {
  return std::any_of(a.runs.begin(), a.runs.end(), [&](const LayerRun& r) { return holds(r.layer.mixer); });
}

/// The fact about checkpoints of this kind and format; "" there is none, and no release follows them.
std::string_view fact_of(const Quantization& q, DType format) {
  const std::string_view method = q.method;
  const bool modelopt = method.starts_with("modelopt") || method == "NVFP4" || method == "FP8";  // hf_quant_config.json
  if (modelopt && format == DType::fp8) return "modelopt_fp8_cache_followed";
  if (modelopt && format == DType::nvfp4) return "modelopt_nvfp4_cache_followed";
  return method.starts_with("compressed") && format == DType::fp8 ? "compressed_fp8_cache_followed" : "";
}

struct CheckpointsChoice {
  Followed followed = Followed::no;
  DType format = DType::bf16;
};

CheckpointsChoice checkpoints_choice(const Architecture& a, EngineKind engine, const Server& server, const Facts& facts) {
  const Quantization& q = a.quantization;
  const auto asked = std::find_if(q.parts.begin(), q.parts.end(), [](const QuantizedModules& p) {
    return p.targets.size() == 1 && p.targets[0] == kCacheTarget;
  });
  if (!server.as_stored || asked == q.parts.end()) return {};
  const std::string_view fact = fact_of(q, asked->format.dtype);
  // vLLM's compressed-tensors rule is in its Attention, which latent attention is none of
  const bool latent = any_mixer(a, [](const Mixer& m) { return m.kind == MixerKind::mla; });
  if (fact.empty() || (latent && fact.starts_with("compressed"))) return {};
  const std::string version = facts.answering(spelling(engine), server.version);
  if (version.empty()) return {};  // refused where the release's other facts are read
  return {static_cast<Followed>(facts.find(spelling(engine), fact, {version, "", {}}).value), asked->format.dtype};
}

/// DeepSeek V3.2 and GLM-5 on sm100 and later: sglang/srt/server_args.py, is_deepseek_nsa, 0.5.3 to 0.5.18 (in 0.5.4 whatever was
/// asked, later of `auto`); arg_groups/overrides.py _dsa_kv_cache_dtype_default, 0.5.18.
bool sparse_in_fp8(const Architecture& a, EngineKind engine, std::string_view sm) {
  const bool blackwell = sm.starts_with("sm10") || sm.starts_with("sm11") || sm.starts_with("sm12");
  return engine == EngineKind::sglang && blackwell && any_mixer(a, [](const Mixer& m) { return m.index_heads > 0; });
}

}  // namespace

DType compute_format(const Architecture& a, DType weights) {
  if (!in_8_bits_or_less(weights)) return weights;
  return a.dtype == DType::fp16 ? DType::fp16 : DType::bf16;
}

DType cache_format(const Architecture& a, EngineKind engine, const Server& server, const Facts& facts, std::string_view sm) {
  const CheckpointsChoice own = checkpoints_choice(a, engine, server, facts);
  if (server.kv && own.followed != Followed::always) return *server.kv;
  if (sparse_in_fp8(a, engine, sm)) return DType::fp8;
  return own.followed == Followed::no ? compute_format(a, server.weights) : own.format;
}

Server with_cache_format(const Architecture& a, EngineKind engine, const Server& server, const Facts& facts,
                         std::string_view sm) {
  Server out = server;
  out.kv = cache_format(a, engine, server, facts, sm);
  return out;
}

}  // namespace oomplan
