// What of an architecture and of its settings Megatron's layers do not describe.
#include "layers/megatron.hpp"

namespace oomplan {
namespace {

std::string unsupported_experts(const FeedForward& f, const ChunkOptions& o) {
  if (o.te.tensor > 1 && !o.te.sequence_parallel)
    return "Megatron itself asks for sequence parallelism where experts meet tensor parallelism";
  if (f.score == RouterScore::sqrt_softplus) return "this router under Megatron is not supported yet";
  if (f.shared_gate || f.latent_width > 0 || (!f.experts_gated && f.shared_width > 0) || f.expert_bias || f.router_bias)
    return "these experts under Megatron are not supported yet";
  return {};
}

/// torch.compile makes squared_relu (megatron/core/activations.py) one kernel that keeps its input; a bias is added in front.
std::string unsupported_activation(const FeedForward& f, const ChunkOptions& o) {
  if (f.activation != Activation::relu_squared) return {};
  if (f.kind == FeedForwardKind::moe) return "experts with a squared ReLU under Megatron are not supported yet";
  if (f.bias) return "a squared ReLU with biases under Megatron is not supported yet";
  if (!o.settings.jit_fuser) return "a squared ReLU that is not compiled (jit_fuser false) is not supported yet";
  return {};
}

/// Rows and columns of 8-bit products are multiples of 8 and 16 (pytorch/utils.py: assert_dim_for_fp8_exec).
std::string unsupported_fp8(const Architecture& a, const ChunkOptions& o) {
  constexpr std::int64_t kUnit = 16;
  if (o.adapters) return "adapters with fp8 under Megatron are not supported yet";
  if (o.mtp > 0) return "multi-token prediction with fp8 under Megatron is not supported yet";
  for (const auto& run : a.runs) {
    if (run.layer.feed_forward.kind == FeedForwardKind::moe) return "experts with fp8 under Megatron are not supported yet";
    if (run.layer.mixer.kind == MixerKind::mla) return "latent attention with fp8 under Megatron is not supported yet";
    const Mixer& m = run.layer.mixer;
    for (const std::int64_t width : {a.hidden, run.layer.feed_forward.width / o.te.tensor, m.heads * m.head_dim / o.te.tensor})
      if (width % kUnit != 0) return "Transformer Engine itself asks for widths that are multiples of 16 with fp8";
  }
  return {};
}

/// Of Megatron-core's own modules. Its RMSNorm is PyTorch's, which knows no sequence parallelism.
std::string unsupported_local(const Layer& l, const ChunkOptions& o) {
  if (l.mixer.kind == MixerKind::mla) return "latent attention of Megatron's own modules is not supported yet";
  if (l.norm == NormKind::rms && o.te.sequence_parallel)
    return "Megatron itself refuses RMSNorm under sequence parallelism without Transformer Engine";
  if (l.norm == NormKind::rms && l.mixer.qk_norm != QkNorm::none)
    return "RMSNorm of queries and keys in Megatron's own modules is not supported yet";
  if (l.feed_forward.kind != FeedForwardKind::moe) return {};
  if (o.settings.grouped_experts)
    return "grouped products of Megatron's own modules are not supported yet: grouped_experts false is one expert after another";
  if (l.feed_forward.shared_width > 0) return "shared experts of Megatron's own modules are not supported yet";
  if (o.recompute != Recompute::none) return "recomputation of experts in Megatron's own modules is not supported yet";
  return {};
}

}  // namespace

std::string unsupported_chunk(const Architecture& a, const ChunkOptions& o) {
  if (o.te.context > 1 && o.te.attention == TeAttention::unfused)
    return "Megatron's context parallelism without a kernel for attention is not supported yet";
  if (o.mtp > 0 && a.position_rows > 0) return "Megatron's multi-token prediction with learned positions is not supported yet";
  if (o.te.fp8 != Fp8Recipe::none)
    if (std::string why = unsupported_fp8(a, o); !why.empty()) return why;
  for (const auto& run : a.runs) {
    const Mixer& m = run.layer.mixer;
    const FeedForward& f = run.layer.feed_forward;
    if (is_local(o))
      if (std::string why = unsupported_local(run.layer, o); !why.empty()) return why;
    if (o.adapters && m.kind == MixerKind::mla) return "adapters beside latent attention under Megatron are not supported yet";
    if (o.adapters && f.kind == FeedForwardKind::moe && (o.adapters.fc1 || o.adapters.fc2 || f.shared_width > 0))
      return "adapters of experts under Megatron are not supported yet: name linear_qkv and linear_proj in lora.targets";
    if (m.kind == MixerKind::mla && m.index_heads > 0) return "Megatron with a sparse-attention indexer is not supported yet";
    if (m.kind != MixerKind::attention && m.kind != MixerKind::mla)
      return "Megatron with layers other than attention is not supported yet";
    if (f.kind == FeedForwardKind::moe) {
      if (std::string why = unsupported_experts(f, o); !why.empty()) return why;
    } else if (f.kind != FeedForwardKind::gated && f.kind != FeedForwardKind::plain) {
      return "this feed-forward under Megatron is not supported yet";
    }
    if (std::string why = unsupported_activation(f, o); !why.empty()) return why;
    if (run.layer.norm_place != NormPlace::pre || m.span != AttentionSpan::full || m.sinks || m.output_gate || m.softcap ||
        (m.qk_norm != QkNorm::none && m.qk_norm != QkNorm::head))
      return "this architecture under Megatron is not supported yet";
    if (run.layer.norm != NormKind::rms && run.layer.norm != NormKind::layer)
      return "this norm under Megatron is not supported yet";
  }
  return {};
}

}  // namespace oomplan
