// What the kernel sets do not describe, by name.
#include "layers/decoder_support.hpp"

#include <algorithm>

#include "layers/archon.hpp"
#include "layers/decoder.hpp"
#include "layers/experts.hpp"
#include "layers/families.hpp"
#include "layers/foak.hpp"
#include "layers/indexer.hpp"
#include "layers/kernels.hpp"
#include "layers/key_cache.hpp"
#include "layers/litgpt.hpp"
#include "layers/packed_linear.hpp"
#include "layers/tensor_parallel.hpp"
#include "layers/titan.hpp"
#include "layers/torchtune.hpp"

namespace oomplan {

bool keeps_state(const Mixer& m) {
  return m.kind == MixerKind::gated_delta || m.kind == MixerKind::mamba1 || m.kind == MixerKind::mamba2;
}

namespace {

/// Activations that a gated block computes with one kernel that saves its input.
bool one_kernel(Activation a) { return a == Activation::silu || a == Activation::gelu || a == Activation::gelu_tanh; }

/// What one matrix for queries, keys and values, one matrix for both halves, or a flat second half leave out.
std::string unsupported_form(const FamilyCode& code, const Layer& layer) {
  const Mixer& m = layer.mixer;
  const FeedForward& ff = layer.feed_forward;
  if (code.fused_qkv == FusedQkv::multi_query && (m.rotary_dim == 0 || m.q_bias || layer.norm_place == NormPlace::pre))
    return "this form of attention";
  if (code.flat_rows && layer.norm_place != NormPlace::pre && layer.norm_place != NormPlace::post)
    return "this place of the norms";
  const bool bare = ff.kind == FeedForwardKind::plain || (ff.kind == FeedForwardKind::moe && !ff.experts_gated);
  const bool written_out = ff.activation == Activation::xielu && ff.kind != FeedForwardKind::plain;
  if (bare ? written_out : !one_kernel(ff.activation)) return "this activation";
  return {};
}

/// Of models whose experts transformers 5 fused, peft renames feed-forward targets to the fused parameters and runs those by a
/// parametrization (huggingface/peft, src/peft/utils/transformers_weight_conversion.py, 0.21.2); dense layers lose theirs.
bool adapts_experts(const FamilyCode& code, const Layer& layer, const AdapterOptions& adapters) {
  if (adapters.by_module) return layer.feed_forward.kind == FeedForwardKind::moe && adapters.folds() && !code.adapts_experts;
  if (adapters.rank == 0 || layer.feed_forward.kind != FeedForwardKind::moe || code.linear_adapters_alone) return false;
  if (code.adapts_experts && adapters.targets.empty() && !adapters.dropout) return false;
  return adapters.targets.empty() || std::any_of(adapters.targets.begin(), adapters.targets.end(), [](const std::string& target) {
           return target == "gate_proj" || target == "up_proj" || target == "down_proj";
         });
}

/// What was not executed with parts that no other family has.
std::string unsupported_own(const FamilyCode& code, const Mixer& m, const KernelOptions& options) {
  if (code.own != OwnCode::none && (options.autocast || options.padding_mask || options.ulysses > 1))
    return "autocast, a padding mask or Ulysses";
  if (code.own == OwnCode::mpt && options.kernels != Kernels::hf_eager) return "another attention than the eager one";
  // whether a stack's first two gradients are added in place there is not settled: a stack more or less
  if (code.own == OwnCode::dbrx && !options.keeps_formats) return "another engine than one device";
  // its decays keep the format that the model was made in: products of two formats
  if (m.kind == MixerKind::lightning && options.casts_parameters) return "a compute format of its own";
  // sums and softmax of 16 bits, which autocast computes in fp32
  if (options.autocast && (code.router == RouterCode::corrected || code.router == RouterCode::sparse_mixer))
    return "autocast beside this router";
  return {};
}

std::string unsupported_layer(const FamilyCode& code, const Layer& layer, const KernelOptions& options) {
  const Mixer& m = layer.mixer;
  const NormPlace place = layer.norm_place;
  const bool latent = m.kind == MixerKind::mla && (m.index_heads == 0 || code.forces_mask),
             sdpa = options.kernels == Kernels::hf_sdpa;
  const bool state = keeps_state(m), convolved = m.kind == MixerKind::short_conv || m.kind == MixerKind::lightning;
  if (m.index_top > 0)
    if (const std::string indexer = unsupported_indexer(options); !indexer.empty()) return indexer;
  if (code.alibi && options.autocast) return "autocast under ALiBi";
  const bool delta = m.kind == MixerKind::gated_delta;
  const bool exchanges =
      delta && options.delta.patched && options.delta.sequence > 0 && options.delta.kernels != LinearAttention::torch;
  const bool splits = exchanges || (delta && options.delta.told_nothing);
  const bool unmasked = !delta || options.delta.patched;  // transformers' own modules take a mask of the batch's padding
  if ((state || convolved) && ((options.padding_mask && unmasked) || (options.ulysses > 1 && !splits)))
    return "a padding mask or Ulysses under linear attention, lightning attention or short convolutions";
  // Nemotron-H: a mixer or a feed-forward block alone in a layer
  const bool alone = place == NormPlace::single && code.norm == NormCode::rms_wide_cast;
  const bool bare = alone && m.kind == MixerKind::none;
  if ((m.kind != MixerKind::attention && !latent && !state && !convolved && !bare) ||
      (m.clip && (m.fused_qkv || m.qk_norm != QkNorm::none)) ||
      (place != NormPlace::pre && place != NormPlace::post && place != NormPlace::pre_and_post &&
       place != NormPlace::parallel_one && place != NormPlace::parallel_two && !(state && place == NormPlace::single) && !alone))
    return "training of this layer";
  if ((m.kind == MixerKind::mamba1 || m.kind == MixerKind::mamba2) &&
      ((place != NormPlace::single && !code.state_in_place) || (m.ssm_norms && !code.norms_scan && !code.state_in_place)))
    return "this form of a state space";
  if (state && options.liger.any()) return "Liger's modules beside linear attention";
  if (code.alibi && (options.kernels != Kernels::hf_eager || place != NormPlace::pre))
    return "another attention than the eager one";
  if (const std::string own = unsupported_own(code, m, options); !own.empty()) return own;
  if (!latent && m.rotary_dim != 0 && m.rotary_dim != m.head_dim && !code.rotary.splits_head && !code.norms_values)
    return "this partial rotary position";
  if ((code.norms_values || code.every_expert || code.shifts_scores) && (options.ulysses > 1 || options.tensor > 1))
    return "Ulysses or tensor parallelism";
  if (code.norms_values && options.kernels == Kernels::hf_flash && m.head_dim > kWidestFlash)
    return "flash-attention, which takes heads of up to 256 numbers,";
  if (code.norm == NormCode::layer_by_hand && m.qk_norm != QkNorm::none) return "the norm of queries and keys";
  if (sdpa && (m.sinks || (latent && options.sdpa_math))) return "SDPA";
  if (const std::string form = unsupported_form(code, layer); !form.empty()) return form;
  if (const std::string split = unsupported_split(code, layer, options); !split.empty()) return split;
  if (adapts_experts(code, layer, options.adapters)) return "LoRA beside experts";
  // peft runs those of routers and experts by a parametrization, which finds no parameter where FSDP1 has made views of a flat
  // one
  // ("does not have a parameter, a buffer, or a parametrized element with name 'weight'", executed with 2.13 and peft 0.21.2)
  if (options.views_of_flat && layer.feed_forward.kind == FeedForwardKind::moe && options.adapters.folds())
    return "LoRA of routers and experts under FSDP1, where PyTorch finds no parameter of theirs,";
  if (const std::string experts = unsupported_experts(code, layer, options); !experts.empty()) return experts;
  if (options.ulysses == 1 || options.kernels == Kernels::torchtitan) return {};
  if (m.heads % options.ulysses != 0) return "Ulysses that does not divide the heads";
  if (options.kernels != Kernels::hf_flash) return "Ulysses with another kernel set than hf_flash (kernels: hf_flash)";
  if (latent || m.sinks) return "Ulysses with this attention";
  return {};
}

}  // namespace

bool scans(const Architecture& a) {
  return std::any_of(a.runs.begin(), a.runs.end(), [](const LayerRun& r) {
    const MixerKind kind = r.layer.mixer.kind;
    return keeps_state(r.layer.mixer) || kind == MixerKind::short_conv || kind == MixerKind::lightning;
  });
}

namespace {

/// A layer uses keys and values that none in front of it has stored.
bool lacks_stored_keys(const Architecture& a) {
  bool full = false, windowed = false;
  for (const LayerRun& run : a.runs) {
    const Mixer& m = run.layer.mixer;
    bool& stored = m.span == AttentionSpan::full ? full : windowed;
    if (m.shared_kv && !stored) return true;
    stored = stored || m.stores_kv;
  }
  return false;
}

}  // namespace

std::string unsupported(const Architecture& a, const KernelOptions& options) {
  const FamilyCode* code = find_family_code(a.family);
  if (code == nullptr) return "training of the family '" + a.family + "' is not supported yet";
  if (options.kv_cache != KvCache::none)
    if (const std::string cache = unsupported_cache(a); !cache.empty()) return cache + " is not supported yet";
  if (options.kernels == Kernels::hf_sdpa && code->no_sdpa)
    return "transformers has no SDPA of '" + a.family + "': kernels are hf_eager, which it takes by itself, or hf_flash";
  if (options.kernels == Kernels::hf_flash && code->no_flash)
    return "flash-attention of '" + a.family + "', which transformers does not run, is not supported yet";
  if (lacks_stored_keys(a)) return "layers that use keys and values of none before them are not supported yet";
  if (is_litgpt(options.kernels)) return unsupported_litgpt(a, options);
  if (is_torchtune(options.kernels)) return unsupported_torchtune(a, options);
  if (options.liger.any() && code->liger != LigerPatch::modules)
    return "Liger kernels of '" + a.family + "' are not supported yet";
  if (std::string why = unsupported_foak(a, options); !why.empty()) return why;
  if (options.kernels == Kernels::torchtitan)
    if (std::string why = unsupported_titan(a, options); !why.empty()) return why;
  if (options.kernels == Kernels::archon) return unsupported_archon(a, options);
  if (std::string why = unsupported_packed(a, *code, options); !why.empty()) return why;
  for (const auto& run : a.runs) {
    const std::string why = unsupported_layer(*code, run.layer, options);
    if (!why.empty()) return why + " of '" + a.family + "' is not supported yet";
    const bool beside = code->parallel_sum == ParallelSum::residual_last &&
                        (run.layer.norm_place == NormPlace::parallel_one || run.layer.norm_place == NormPlace::parallel_two);
    const bool plain = run.layer.norm_place == NormPlace::pre && !code->keeps_normed;
    if (a.hidden_dropout > 0 && !plain && !beside && !code->flat_rows)
      return "dropout in this layer of '" + a.family + "' is not supported yet";
  }
  const bool narrow = a.embedding_width > 0;
  if ((narrow && (!code->flat_rows || options.adapters.rank > 0)) || a.embedding_norm != code->alibi ||
      (a.final_norm == NormKind::none && !code->flat_rows))
    return "this embedding or final norm of '" + a.family + "' is not supported yet";
  const bool wide = options.parameters == DType::fp32 && !options.autocast;
  if (code->own != OwnCode::none && (a.attention_dropout > 0 || a.hidden_dropout > 0 || a.embedding_dropout > 0))
    return "dropout in '" + a.family + "' is not supported yet";
  if (code->own == OwnCode::mpt && a.position_rows > 0) return "MPT without distances in its scores is not supported yet";
  if (a.attention_dropout > 0 && options.kernels == Kernels::hf_sdpa && (options.sdpa_math || wide))
    return "attention dropout in SDPA's math kernel is not supported yet";
  return {};
}

}  // namespace oomplan
