// What of an architecture and of its settings Megatron's layers do not describe.
#include <array>
#include <utility>

#include <fmt/format.h>

#include "layers/megatron.hpp"

namespace oomplan {
namespace {

std::string unsupported_experts(const FeedForward& f, const ChunkOptions& o) {
  if (o.te.tensor > 1 && !o.te.sequence_parallel && !o.forward_only)  // MoELayer.forward looks at self.training
    return "Megatron itself asks for sequence parallelism where experts meet tensor parallelism";
  if (f.score == RouterScore::sqrt_softplus) return "this router under Megatron is not supported yet";
  if (f.latent_width > 0) return "experts on a projection of the hidden states under Megatron are not supported yet";
  if (f.expert_bias && o.expert_tensor > 1) return "Megatron itself has no biases of experts that are split";
  if (f.expert_bias && f.shared_width > 0) return "Megatron itself has no biases of shared experts";
  if (f.expert_bias && !o.settings.grouped_experts && !is_local(o))
    return "experts with biases one after another in Transformer Engine's modules are not supported yet";
  if (o.te.fp8 != Fp8Recipe::none && (f.expert_bias || f.shared_gate))
    return "biases of experts and gates of shared experts with fp8 under Megatron are not supported yet";
  return {};
}

/// Columns of a layer's matrices on a rank.
std::vector<std::int64_t> widths_of(const Architecture& a, const Layer& l, const ChunkOptions& o) {
  const Mixer& m = l.mixer;
  const FeedForward& f = l.feed_forward;
  const std::int64_t t = o.te.tensor;
  std::vector<std::int64_t> out{a.hidden};
  if (m.kind == MixerKind::mla) {
    out.insert(out.end(), {m.heads * m.value_head_dim / t, m.kv_lora_rank});
    if (m.q_lora_rank > 0) out.push_back(m.q_lora_rank);
  } else {
    out.push_back(m.heads * m.head_dim / t);
  }
  if (f.kind != FeedForwardKind::moe) {
    out.push_back(f.width / t);
  } else {
    out.push_back(f.expert_width / o.expert_tensor);
    if (f.shared_width > 0) out.push_back(f.shared_width / t);
  }
  return out;
}

/// torch.compile makes squared_relu (megatron/core/activations.py) one kernel that keeps its input.
std::string unsupported_activation(const FeedForward& f, const ChunkOptions& o) {
  if (f.activation != Activation::relu_squared) return {};
  if (!o.settings.jit_fuser) return "a squared ReLU that is not compiled (jit_fuser false) is not supported yet";
  return {};
}

/// Transformer Engine asks for multiples of 16 (pytorch/utils.py: assert_dim_for_fp8_exec), of 32 with blocks of 32; what is
/// gathered with a scale for 128 numbers is not in 8 bits unless it has as many (tensor/float8_blockwise_tensor.py:
/// is_quantizable).
std::string unsupported_fp8(const Architecture& a, const ChunkOptions& o) {
  if (o.adapters) return "adapters with fp8 under Megatron are not supported yet";
  const bool gathers = o.te.sequence_parallel && o.te.tensor > 1;
  for (const auto& run : a.runs) {
    const bool moe = run.layer.feed_forward.kind == FeedForwardKind::moe;
    if (moe && !o.settings.grouped_experts)
      return "experts one after another with fp8 under Megatron are not supported yet: grouped_experts: true";
    if (moe && o.settings.expert_capacity > 0) return "a capacity of the experts with fp8 under Megatron is not supported yet";
    for (const std::int64_t width : widths_of(a, run.layer, o)) {
      if (width % 16 != 0) return "Transformer Engine itself asks for widths that are multiples of 16 with fp8";
      if (o.te.fp8 == Fp8Recipe::mxfp8 && width % 32 != 0)
        return "Transformer Engine itself asks for widths that are multiples of 32 with mxfp8";
      if (o.te.fp8 == Fp8Recipe::blockwise && gathers && width % 128 != 0)
        return "blockwise fp8 under sequence parallelism is not supported yet with widths that are no multiples of 128";
    }
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

/// Linear attention on every rank, of any number of heads. Attention with an output gate is Megatron's: of a group that ranks
/// share it takes a part of the queries and the whole gate (megatron/core/transformer/attention.py, 1dcf0dafa).
std::string unsupported_slime(const Architecture& a, const Mixer& m, const ChunkOptions& o) {
  if (!a.tower.kind.empty())
    return "slime's models with a tower are not supported yet: their text alone is (:text behind the name)";
  if (m.output_gate && m.kv_heads < o.te.tensor)
    return fmt::format("Megatron itself fails with an output gate of attention in {} groups on {} ranks", m.kv_heads,
                       o.te.tensor);
  return {};
}

/// GatedDeltaNet and attention with an output gate, as RL frameworks' bridges make them.
std::string unsupported_linear(const Architecture& a, const Mixer& m, const ChunkOptions& o) {
  if (m.kind != MixerKind::gated_delta && !m.output_gate) return {};
  if (o.delta_chunks == 0) return "Megatron with layers other than attention is not supported yet";
  const std::array<std::pair<bool, const char*>, 5> beside{
      {{o.te.context > 1 && o.packed > 0 && !o.patched, "context parallelism of packed sequences"},
       {o.adapters.rank > 0 && (!o.patched || o.of_slime), "adapters"},
       {o.te.fp8 != Fp8Recipe::none, "fp8"},
       {is_local(o), "Megatron's own modules"},
       {o.settings.fsdp != MegatronFsdpStrategy::off, "Megatron-FSDP"}}};
  for (const auto& [is, what] : beside)
    if (is) return std::string(what) + " beside linear attention under Megatron: not supported yet";
  if (o.of_slime) return unsupported_slime(a, m, o);
  if (m.output_gate && m.kv_heads < o.te.tensor && (o.te.tensor % m.kv_heads != 0 || m.heads % o.te.tensor != 0))
    return fmt::format("Megatron itself refuses {} heads in {} groups on {} ranks", m.heads, m.kv_heads, o.te.tensor);
  if (const std::int64_t ranks = o.te.tensor * o.te.context; m.kind == MixerKind::gated_delta && m.linear_key_heads % ranks != 0)
    return o.patched && m.linear_key_heads % o.te.tensor == 0  // relax/backends/megatron/model.py: _patch_gdn_for_dynamic_cp
               ? fmt::format("{} heads of linear attention on {} ranks, for which Relax gathers all tokens: not supported yet",
                             m.linear_key_heads, ranks)
               : fmt::format("Megatron itself refuses {} heads of linear attention on {} ranks", m.linear_key_heads, ranks);
  if (a.tower.kind.empty()) return "linear attention of a model without a tower under Megatron is not supported yet";
  return {};
}

/// A model with a vision tower, whose parameters stand on the first stage whether images come or not.
std::string unsupported_tower(const Architecture& a, const ChunkOptions& o) {
  const Tower& t = a.tower;
  if (t.kind.empty()) return {};
  if (holds_tower_alone(a) && o.patched) {
    if (o.vision.images > 0) return "images of Kimi's tower under Megatron are not supported yet";
    if (o.adapters || o.tower != TowerTraining::all) return "Kimi's tower under Megatron is not supported yet, but trained";
    if (o.te.fp8 != Fp8Recipe::none || o.settings.fsdp != MegatronFsdpStrategy::off || is_local(o))
      return "Kimi's tower under Megatron is not supported yet beside other products than those in 16 bits";
    return {};
  }
  if (t.kind != "qwen2_5_vl" && t.kind != "qwen3_vl")
    return "a vision tower ('" + t.kind + "') under Megatron is not supported yet";
  const std::array<std::pair<bool, const char*>, 4> beside{{{o.adapters.rank > 0 && !o.patched, "adapters"},
                                                            {o.te.fp8 != Fp8Recipe::none, "fp8"},
                                                            {is_local(o), "Megatron's own modules"},
                                                            {o.settings.fsdp != MegatronFsdpStrategy::off, "Megatron-FSDP"}}};
  for (const auto& [is, what] : beside)
    if (is) return std::string(what) + " beside a vision tower under Megatron: not supported yet";
  const bool whole = tower_of_transformers(a, o);
  if (whole && o.te.context > 1) return "transformers' tower under context parallelism is not supported yet";
  if (o.te.context > 1 && o.packed == 0 && o.delta_chunks == 0)
    return "padded sequences beside a vision tower under context parallelism: not supported yet but for Qwen3.5";
  if (!whole && o.te.tensor > 0 && (t.heads % o.te.tensor != 0 || t.width % o.te.tensor != 0))
    return fmt::format("Megatron itself refuses {} heads and a width of {} of the tower on {} ranks", t.heads, t.width,
                       o.te.tensor);
  const bool runs = o.recompute == Recompute::full && o.settings.recompute_method == RecomputeMethod::uniform;
  if (t.kind == "qwen3_vl" && o.settings.maker == ModelMaker::mbridge && runs && o.settings.recompute_layers != 1)
    return "mbridge's Qwen3-VL itself asserts recompute_num_layers 1 with the method uniform";
  if (o.first && o.featured > static_cast<std::int64_t>(o.layers.size()))
    return fmt::format("the first {} layers get features of the tower: the first stage needs as many", o.featured);
  return {};
}

}  // namespace

std::string unsupported_chunk(const Architecture& a, const ChunkOptions& o) {
  if (o.gemma) return unsupported_gemma(a, o);
  if (std::string why = unsupported_tower(a, o); !why.empty()) return why;
  if (o.te.context > 1 && o.te.attention == TeAttention::unfused)
    return "Megatron's context parallelism without a kernel for attention is not supported yet";
  if (o.mtp > 0 && a.position_rows > 0) return "Megatron's multi-token prediction with learned positions is not supported yet";
  if (o.te.fp8 != Fp8Recipe::none)
    if (std::string why = unsupported_fp8(a, o); !why.empty()) return why;
  const bool fsdp = o.settings.fsdp != MegatronFsdpStrategy::off;
  for (const auto& run : a.runs) {
    const Mixer& m = run.layer.mixer;
    const FeedForward& f = run.layer.feed_forward;
    if (fsdp && (m.kind == MixerKind::mla || f.kind == FeedForwardKind::moe))
      return "experts and latent attention under Megatron-FSDP are not supported yet";
    if (is_local(o))
      if (std::string why = unsupported_local(run.layer, o); !why.empty()) return why;
    if (o.te.attention == TeAttention::local && f.kind == FeedForwardKind::moe)
      return "Transformer Engine itself finds no kernel: Megatron-Bridge's layers with experts keep its attention";
    if (o.te.attention == TeAttention::local && (m.kind != MixerKind::attention || m.rotary_dim == 0 || !a.tower.kind.empty()))
      return "Megatron's own attention in these layers of Megatron-Bridge is not supported yet";
    if (o.adapters && m.kind == MixerKind::mla) return "adapters beside latent attention under Megatron are not supported yet";
    const bool plain = (o.areal.on || o.actor.has_value() || o.patched) && o.settings.grouped_experts && o.expert_tensor == 1 &&
                       (f.shared_width == 0 || (o.patched && !o.settings.shared_expert_overlap));
    if (o.adapters && f.kind == FeedForwardKind::moe && (o.adapters.fc1 || o.adapters.fc2 || f.shared_width > 0) && !plain)
      return "adapters of experts under Megatron are not supported yet: name linear_qkv and linear_proj in lora.targets";
    if (m.kind == MixerKind::mla && m.index_heads > 0) return "Megatron with a sparse-attention indexer is not supported yet";
    if (std::string why = unsupported_linear(a, m, o); !why.empty()) return why;
    if (m.kind != MixerKind::attention && m.kind != MixerKind::mla && m.kind != MixerKind::gated_delta)
      return "Megatron with layers other than attention is not supported yet";
    if (f.kind == FeedForwardKind::moe) {
      if (std::string why = unsupported_experts(f, o); !why.empty()) return why;
    } else if (f.kind != FeedForwardKind::gated && f.kind != FeedForwardKind::plain) {
      return "this feed-forward under Megatron is not supported yet";
    }
    if (std::string why = unsupported_activation(f, o); !why.empty()) return why;
    const bool slime_norms = o.of_slime && run.layer.norm_place == NormPlace::pre_and_post && m.kind == MixerKind::attention &&
                             f.kind == FeedForwardKind::gated && !is_local(o) && o.te.fp8 == Fp8Recipe::none;
    const bool slime_heads = o.of_slime && m.qk_norm == QkNorm::full && !is_local(o) && o.te.fp8 == Fp8Recipe::none;
    if ((run.layer.norm_place != NormPlace::pre && !slime_norms) || m.span != AttentionSpan::full || m.sinks || m.softcap ||
        (m.qk_norm != QkNorm::none && m.qk_norm != QkNorm::head && !slime_heads))
      return "this architecture under Megatron is not supported yet";
    const bool from_one = run.layer.norm == NormKind::rms_plus_one && o.delta_chunks > 0;  // layernorm_zero_centered_gamma
    if (run.layer.norm != NormKind::rms && run.layer.norm != NormKind::layer && !from_one)
      return "this norm under Megatron is not supported yet";
  }
  return {};
}

}  // namespace oomplan
