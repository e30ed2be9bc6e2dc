#include "job/kernel_needs.hpp"

#include <algorithm>
#include <charconv>

#include "catalog/facts.hpp"
#include "job/kernel_sets.hpp"
#include "job/stored_weights.hpp"

namespace oomplan {
namespace {

bool older_than(std::string_view sm, int capability) {
  const int here = compute_capability(sm);
  return here > 0 && here < capability;
}

template <class Holds>
bool any_mixer(const Role& r, Holds holds) {
  return r.architecture != nullptr && std::any_of(r.architecture->runs.begin(), r.architecture->runs.end(),
                                                  [&](const LayerRun& run) { return holds(run.layer.mixer); });
}
bool latent(const Role& r) {
  return any_mixer(r, [](const Mixer& m) { return m.kind == MixerKind::mla; });
}
bool attends(const Role& r) {
  return any_mixer(r, [](const Mixer& m) { return m.kind == MixerKind::attention || m.kind == MixerKind::mla; });
}

/// What queries, keys and values are when they come to the attention of transformers: autocast's products are in 16 bits.
bool attends_in_fp32(const Trainer& t) { return t.compute == DType::fp32 && !t.autocast; }
bool flash(const Role& r) { return !r.serves() && r.engine != EngineKind::megatron && r.trainer.kernels == Kernels::hf_flash; }
bool by_sdpa(const Role& r) {
  const Kernels k = r.trainer.kernels;
  return !r.serves() && r.engine != EngineKind::megatron && k != Kernels::hf_flash && k != Kernels::hf_eager &&
         k != Kernels::archon && k != Kernels::transformer_engine;
}
bool transformer_engine(const Role& r) {
  return !r.serves() && r.engine == EngineKind::megatron && r.trainer.megatron.impl == TransformerImpl::transformer_engine;
}

bool vllm(const Role& r) { return r.engine == EngineKind::vllm; }
bool sglang(const Role& r) { return r.engine == EngineKind::sglang; }
bool release(const Role& r, std::string_view from, std::string_view until = "") {
  const std::string& v = r.server.version;
  if (v.empty()) return until.empty();
  return compare_versions(v, from) >= 0 && (until.empty() || compare_versions(v, until) < 0);
}
bool computes_in_fp32(const Role& r) { return r.serves() && r.server.weights == DType::fp32; }

/// A server's checkpoint as it lies: its quant_method, "" of one in 16 bits or of weights that come from a trainer.
std::string_view method(const Role& r) {
  if (r.architecture == nullptr || !serves_as_stored(r)) return "";
  return r.architecture->quantization.method;
}
bool begins(std::string_view text, std::string_view with) { return text.starts_with(with); }
/// Methods that compute in fp32 too: get_supported_act_dtypes of vllm/model_executor/layers/quantization, 0.19.1, and of
/// sglang/srt/layers/quantization, 0.5.10.
bool quantised_for_16_bits(const Role& r) {
  const std::string_view m = method(r);
  const bool fp8 = r.server.online != OnlineFormat::none && r.server.online != OnlineFormat::bitsandbytes;
  if (m.empty()) return fp8;
  return m != "bitsandbytes" && !(vllm(r) && begins(m, "compressed"));
}
bool fp8_weights(const Role& r) { return r.serves() && (method(r) == "fp8" || r.server.weights == DType::fp8); }

// clang-format off
constexpr KernelNeed kNeeds[] = {
    // ---- training
    {"flash_fp32", "precision.compute", "bf16, autocast: true, or kernels: hf_sdpa",
     "flash-attention itself refuses it: \"FlashAttention only support fp16 and bf16 data type\" (Dao-AILab/flash-attention "
     "csrc/flash_attn/flash_api.cpp, 2.8); transformers casts fp32 to autocast's format or the weights' own, which is fp32 here "
     "(transformers/integrations/flash_attention.py get_target_dtype, 5.23; the same in each model, 4.37)",
     [](const Role& r, std::string_view) { return flash(r) && attends_in_fp32(r.trainer) && attends(r); }},
    {"flash_gpu", "kernels", "hf_sdpa or hf_eager",
     "flash-attention itself refuses it: \"FlashAttention only supports Ampere GPUs or newer.\" (Dao-AILab/flash-attention "
     "csrc/flash_attn/flash_api.cpp, 2.8); transformers/modeling_utils.py says so when the model is made, 5.23",
     [](const Role& r, std::string_view sm) { return flash(r) && older_than(sm, 80); }},
    {"flash_width", "kernels", "hf_sdpa or hf_eager",
     "flash-attention itself refuses it: \"FlashAttention forward only supports head dimension at most 256\" "
     "(Dao-AILab/flash-attention csrc/flash_attn/flash_api.cpp, 2.8)",
     [](const Role& r, std::string_view) {
       return flash(r) && any_mixer(r, [](const Mixer& m) {
         return (m.kind == MixerKind::attention && m.head_dim > 256) ||
                (m.kind == MixerKind::mla && m.nope_head_dim + m.rope_head_dim > 256);
       });
     }},
    {"archon_gpu", "engine", "fsdp2",
     "PyTorch itself refuses it: \"FlashAttention only supports Ampere GPUs or newer.\" (aten/src/ATen/native/transformers/cuda/"
     "flash_attn/flash_api.cpp, 2.9); Archon attends to packed sequences by it",
     [](const Role& r, std::string_view sm) { return r.engine == EngineKind::archon && older_than(sm, 80); }},
    {"sdpa_gpu", "kernels", "hf_eager",
     "not supported yet: SDPA in 16 bits before Ampere, where PyTorch has no flash kernel and no bf16 in the memory-efficient one "
     "(aten/src/ATen/native/transformers/cuda/sdp_utils.cpp, 2.13: check_sm_version, less_than_sm80_mem_efficient_dtypes)",
     [](const Role& r, std::string_view sm) {
       return by_sdpa(r) && older_than(sm, 80) && !attends_in_fp32(r.trainer) && attends(r);
     }},
    {"te_gpu", "transformer_impl", "local",
     "not supported yet: Transformer Engine before Ampere, where neither flash-attention nor cuDNN attends and its own unfused "
     "attention does (transformer_engine/pytorch/attention/dot_product_attention/utils.py get_attention_backend, 2.9)",
     [](const Role& r, std::string_view sm) { return transformer_engine(r) && older_than(sm, 80); }},
    {"torchao_float8_gpu", "float8", "none",
     "PyTorch itself refuses it: torch._scaled_mm takes GPUs of compute capability 8.9 and above (aten/src/ATen/native/cuda/"
     "Blas.cpp, 2.9)",
     [](const Role& r, std::string_view sm) { return !r.serves() && r.trainer.float8 != Float8::none && older_than(sm, 89); }},
    {"te_fp8_gpu", "fp8_recipe", "none",
     "Transformer Engine itself refuses it: \"Device compute capability 8.9 or higher required for FP8 execution.\" "
     "(transformer_engine/pytorch/quantization.py, 2.9)",
     [](const Role& r, std::string_view sm) {
       const Fp8Recipe f = r.trainer.megatron.fp8;
       return transformer_engine(r) && (f == Fp8Recipe::delayed || f == Fp8Recipe::tensorwise) && older_than(sm, 89);
     }},
    {"te_blockwise_gpu", "fp8_recipe", "none, delayed or tensorwise",
     "Transformer Engine itself refuses it: \"FP8 block scaled GEMM requires compute capability 9.0 or higher and CUDA >= 12.9.\" "
     "(transformer_engine/pytorch/quantization.py, 2.9)",
     [](const Role& r, std::string_view sm) {
       return transformer_engine(r) && r.trainer.megatron.fp8 == Fp8Recipe::blockwise && older_than(sm, 90);
     }},
    {"te_mxfp8_gpu", "fp8_recipe", "none, delayed, tensorwise or blockwise",
     "Transformer Engine itself refuses it: \"Device compute capability 10.0 or higher required for MXFP8 execution.\", and 12.0 "
     "is \"not supported yet\" (transformer_engine/pytorch/quantization.py, 2.9)",
     [](const Role& r, std::string_view sm) {
       const bool lacks = older_than(sm, 100) || compute_capability(sm) >= 120;
       return transformer_engine(r) && r.trainer.megatron.fp8 == Fp8Recipe::mxfp8 && lacks;
     }},
    // ---- serving
    {"sglang_gpu", "engine", "vllm",
     "the engine itself refuses it: \"SGLang only supports sm75 and above.\" (sglang/srt/model_executor/model_runner.py, 0.4.6 to "
     "0.5.18)",
     [](const Role& r, std::string_view sm) { return sglang(r) && older_than(sm, 75); }},
    {"sglang_fp32", "weights", "bf16 or fp16",
     "the kernels it chooses by itself refuse it: FlashAttention 3, FlashInfer and TensorRT-LLM's attend in 16 bits "
     "(sglang/srt/server_args.py _get_default_attn_backend, 0.5.10); not supported yet: another --attention-backend",
     [](const Role& r, std::string_view) { return sglang(r) && computes_in_fp32(r) && attends(r); }},
    {"vllm_fp32_latent", "weights", "bf16 or fp16",
     "the engine itself refuses it: \"No valid attention backend found\", none of latent attention takes fp32 (vllm/platforms/cuda.py "
     "get_attn_backend_cls, 0.11.2 to 0.24.0; attention/selector.py before)",
     [](const Role& r, std::string_view) { return vllm(r) && computes_in_fp32(r) && latent(r); }},
    {"vllm_whole_heads", "engine", "vllm 0.7.1 or later",
     "not supported yet: latent attention that is cached as whole heads, as vLLM does before 0.7.1 (no use_mla in vllm/config.py, 0.7.0)",
     [](const Role& r, std::string_view) { return vllm(r) && latent(r) && release(r, "0", "0.7.1"); }},
    {"quantised_fp32", "weights", "bf16 or fp16",
     "the engine itself refuses it: \"torch.float32 is not supported for quantization method\" (vllm/config/vllm.py, 0.19.1; "
     "sglang/srt/model_loader/loader.py, 0.5.10)",
     [](const Role& r, std::string_view) { return computes_in_fp32(r) && quantised_for_16_bits(r); }},
    {"mxfp4_fp16", "weights", "bf16",
     "the engine itself refuses it: \"torch.float16 is not supported for quantization method mxfp4\" (vllm/model_executor/layers/"
     "quantization/mxfp4.py, 0.10.2 to 0.24.0)",
     [](const Role& r, std::string_view) { return vllm(r) && method(r) == "mxfp4" && r.server.weights == DType::fp16; }},
    {"fp8_gpu", "weights", "bf16 or fp16",
     "the engine itself refuses it: \"The quantization method fp8 is not supported for the current GPU. Minimum capability: 80\" "
     "(vllm/model_executor/layers/quantization/fp8.py, 0.6.6 to 0.13.0; 75 from 0.14.1 on; sglang/srt/layers/quantization/fp8.py, "
     "0.5.10: 80)",
     [](const Role& r, std::string_view sm) {
       const int least = vllm(r) && release(r, "0.14") ? 75 : 80;
       return fp8_weights(r) && older_than(sm, least);
     }},
    {"mxfp4_gpu", "engine", "a GPU of compute capability 8.0",
     "the engine itself refuses it: \"The quantization method mxfp4 is not supported for the current GPU. Minimum capability: 80\" "
     "(vllm/model_executor/layers/quantization/mxfp4.py, 0.10.2 to 0.24.0; sglang/srt/layers/quantization/mxfp4.py, 0.5.10)",
     [](const Role& r, std::string_view sm) { return r.serves() && method(r) == "mxfp4" && older_than(sm, 80); }},
    {"awq_gpu", "engine", "a GPU of compute capability 7.5",
     "the engine itself refuses it: \"The quantization method awq is not supported for the current GPU. Minimum capability: 75\" "
     "(vllm/model_executor/layers/quantization/awq.py, 0.6.6 to 0.19.1; sglang/srt/layers/quantization/awq.py, 0.5.10: 80)",
     [](const Role& r, std::string_view sm) { return r.serves() && method(r) == "awq" && older_than(sm, vllm(r) ? 75 : 80); }},
};
// clang-format on

}  // namespace

int compute_capability(std::string_view sm) {
  int out = 0;
  if (!sm.starts_with("sm")) return 0;
  std::from_chars(sm.data() + 2, sm.data() + sm.size(), out);
  return out;
}

std::span<const KernelNeed> kernel_needs() { return kNeeds; }

std::vector<const KernelNeed*> broken_needs(const Role& role, std::string_view sm) {
  std::vector<const KernelNeed*> out;
  for (const KernelNeed& need : kNeeds)
    if (need.broken(role, sm)) out.push_back(&need);
  return out;
}

}  // namespace oomplan
