#include "inference/layer_cache.hpp"

#include <algorithm>
#include <iterator>
#include <string_view>

#include "inference/compressed_cache.hpp"

namespace oomplan {
namespace {

/// Of a token and head, of keys or values (vllm/v1/kv_cache_interface.py AttentionSpec.page_size_bytes, 0.20 to 0.24).
constexpr Bytes kScale = 4;

/// Families whose checkpoints ask for recurrent states in fp32, and vLLM does as they ask (vllm/model_executor/models/config.py,
/// mamba_ssm_cache_dtype of Nemotron-H and mamba_ssm_dtype of Qwen3.5 in config.json, 0.14 to 0.24).
constexpr std::string_view kFp32States[] = {"nemotron_h", "qwen3_5", "qwen3_5_moe"};

class Caches {
 public:
  Caches(const Architecture& architecture, const CacheFormat& format) : a_(architecture), format_(format) {}

  LayerCache of(const Mixer& m) const {
    LayerCache out;
    switch (m.kind) {
      case MixerKind::attention:
        if (m.shared_kv) return out;
        out.kind = m.span == AttentionSpan::full ? CacheKind::full
                                                 : (m.span == AttentionSpan::sliding ? CacheKind::sliding : CacheKind::chunked);
        out.window = m.window;
        out.heads = m.kv_heads;
        out.token_head = cache_bytes(m.head_dim + (m.value_head_dim ? m.value_head_dim : m.head_dim));
        if (format_.token_scales) out.token_head += 2 * kScale;
        return out;
      case MixerKind::mla:
        return m.out_groups > 0 ? compressed_layer(m) : latent(m);
      case MixerKind::gated_delta:
      case MixerKind::kimi_delta:
        out.kind = CacheKind::state;
        out.conv_steps = conv_steps(m);
        out.state_conv =
            bytes_of(conv_steps(m) * (2 * m.linear_key_heads * m.linear_key_dim + m.linear_value_heads * m.linear_value_dim),
                     conv_dtype());
        out.state_recurrent = bytes_of(m.linear_value_heads * m.linear_value_dim * m.linear_key_dim,
                                       m.kind == MixerKind::kimi_delta ? DType::fp32 : state_dtype());
        return out;
      case MixerKind::mamba1:
        out.kind = CacheKind::state;
        out.state_conv = bytes_of(conv_steps(m) * m.inner, conv_dtype());
        out.state_recurrent = bytes_of(m.inner * m.state_size, state_dtype());
        return out;
      case MixerKind::mamba2:
        out.kind = CacheKind::state;
        out.heads = m.groups;
        out.state_conv = bytes_of(conv_steps(m) * m.inner, conv_dtype());
        out.state_group = bytes_of(conv_steps(m) * 2 * m.state_size, conv_dtype());
        out.state_recurrent = bytes_of(m.inner * m.state_size, state_dtype());
        return out;
      case MixerKind::lightning:
        out.kind = CacheKind::state;
        out.state_recurrent = bytes_of(m.heads * m.head_dim * m.head_dim, DType::fp32);
        return out;
      case MixerKind::short_conv:
        out.kind = CacheKind::state;
        out.state_conv = bytes_of(conv_steps(m) * a_.hidden, conv_dtype());
        return out;
      case MixerKind::none:
      case MixerKind::linear:
        return out;
    }
    return out;
  }

 private:
  bool asks_fp32() const { return std::find(std::begin(kFp32States), std::end(kFp32States), a_.family) != std::end(kFp32States); }

  /// Inputs that a convolution remembers: tokens that are guessed ahead may be taken back (vLLM's mamba_utils.py, 0.19; SGLang
  /// has whole states for them).
  std::int64_t conv_steps(const Mixer& m) const {
    return m.conv_kernel - 1 + (format_.engine == EngineKind::vllm ? format_.draft_tokens : 0);
  }

  /// SGLang keeps what convolutions remember in bf16, whatever --dtype says (sglang/srt/configs/mamba_utils.py, 0.5.4 to 0.5.18:
  /// SGLANG_MAMBA_CONV_DTYPE).
  DType conv_dtype() const { return format_.engine == EngineKind::sglang ? DType::bf16 : format_.compute; }

  /// SGLang keeps recurrent states in fp32; vLLM in the model's dtype unless the model asks for fp32.
  DType state_dtype() const { return format_.engine == EngineKind::sglang || asks_fp32() ? DType::fp32 : format_.compute; }

  /// DeepSeek V3.2's sparse attention: 512 fp8 + 4 fp32 scales + 64 bf16 a token, and an indexer of 128 fp8 + one fp32 scale.
  LayerCache latent(const Mixer& m) const {
    LayerCache out;
    out.kind = CacheKind::latent;
    out.heads = 1;
    const std::int64_t width = m.kv_lora_rank + m.rope_head_dim;
    out.token_head = bytes_of(width, format_.kv);
    // layers that share an earlier layer's indexer (GLM-5.2) have the sparse layout without an indexer's own cache
    const bool sparse =
        std::any_of(a_.runs.begin(), a_.runs.end(), [](const LayerRun& r) { return r.layer.mixer.index_heads > 0; });
    if (sparse && format_.kv == DType::fp8) out.token_head = m.kv_lora_rank + m.kv_lora_rank / 128 * 4 + 2 * m.rope_head_dim;
    if (m.index_heads > 0) out.token_head += m.index_head_dim + m.index_head_dim / 128 * 4;
    return out;
  }

  Bytes cache_bytes(std::int64_t elements) const {
    const Bytes plain = bytes_of(elements, format_.kv);
    if (format_.kv == DType::mxfp4 || format_.kv == DType::nvfp4) return plain + elements / 16;
    return plain;
  }

  const Architecture& a_;
  const CacheFormat& format_;
};

}  // namespace

LayerCache layer_cache(const Mixer& mixer, const Architecture& architecture, const CacheFormat& format) {
  return Caches(architecture, format).of(mixer);
}

}  // namespace oomplan
