#include "layers/decoder.hpp"

#include <algorithm>

#include "layers/archon.hpp"
#include "layers/attention.hpp"
#include "layers/bloom.hpp"
#include "layers/dbrx.hpp"
#include "layers/delta.hpp"
#include "layers/experts.hpp"
#include "layers/families.hpp"
#include "layers/foak.hpp"
#include "layers/gemma3n.hpp"
#include "layers/gptj.hpp"
#include "layers/indexer.hpp"
#include "layers/lightning.hpp"
#include "layers/litgpt.hpp"
#include "layers/llama4.hpp"
#include "layers/mamba.hpp"
#include "layers/mamba2.hpp"
#include "layers/mla.hpp"
#include "layers/mlp.hpp"
#include "layers/moe.hpp"
#include "layers/mpt.hpp"
#include "layers/normed_attention.hpp"
#include "layers/ops.hpp"
#include "layers/packed_linear.hpp"
#include "layers/short_conv.hpp"
#include "layers/tensor_parallel.hpp"
#include "layers/titan.hpp"
#include "layers/torchtune.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::S, axis::T;  // S: the tokens of the layer's input, all of a sequence but under tensor parallelism

GatedLeaves gated_leaves(const LayerLeaves& w) { return {w.gate, w.gate_bias, w.up, w.up_bias, w.gate_up, w.down, w.down_bias}; }

/// `weights`: the router's, where the block returns them and the layer keeps the name. `routed`: as in Mixed.
Tensor feed_forward(Eager& g, const FamilyCode& code, const FeedForward& ff, Dim hidden, const Tensor& x, const LayerLeaves& w,
                    const KernelOptions& options, Tensor& weights, Tensor& routed) {
  g.prefix += "mlp.";
  Tensor out;
  if (code.own == OwnCode::dbrx) {
    out = run_dbrx_experts(g, ff, hidden, x, w, options.routed_tokens);
  } else if (ff.kind == FeedForwardKind::moe && !ff.router_scales) {
    Mixed mixed = code.every_expert ? every_expert(g, ff, hidden.coefficient, x, w, options)
                                    : moe_block(g, code, ff, hidden.coefficient, x, w, options);
    out = std::move(mixed.output);
    routed = std::move(mixed.routed);
    if (code.returns_router_weights || !w.expert_modules.empty()) weights = std::move(mixed.weights);
  } else if (ff.kind == FeedForwardKind::plain) {
    out = plain_mlp(g, code, x, {B, x.shape[1]}, hidden, ff, w);
  } else if (code.shared == SharedPlace::apart && ff.fused_gate_up) {
    out = granite_mlp(g, x, hidden, ff.width, w.gate_up, w.down);
  } else {
    out = gated_mlp(g, x, {B, x.shape[1]}, hidden, ff.width, gated_leaves(w), "", options);
  }
  if (options.hidden_dropout) {
    Tensor dropped = dropout(g, out, "dropped");
    out = std::move(dropped);
  }
  g.prefix.resize(g.prefix.size() - 4);
  return out;
}

}  // namespace

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
  if (adapters.rank == 0 || layer.feed_forward.kind != FeedForwardKind::moe || code.linear_adapters_alone) return false;
  if (code.adapts_experts && adapters.targets.empty() && !adapters.dropout) return false;
  return adapters.targets.empty() || std::any_of(adapters.targets.begin(), adapters.targets.end(), [](const std::string& target) {
           return target == "gate_proj" || target == "up_proj" || target == "down_proj";
         });
}

/// A state in place of keys and values, made by a loop over the sequence.
bool keeps_state(const Mixer& m) {
  return m.kind == MixerKind::gated_delta || m.kind == MixerKind::mamba1 || m.kind == MixerKind::mamba2;
}

/// What was not executed with parts that no other family has.
std::string unsupported_own(const FamilyCode& code, const Mixer& m, const KernelOptions& options) {
  if (code.own != OwnCode::none && (options.autocast || options.padding_mask || options.ulysses > 1))
    return "autocast, a padding mask or Ulysses";
  if (code.own == OwnCode::mpt && options.kernels != Kernels::hf_eager) return "another attention than the eager one";
  // whether a stack's first two gradients are added in place there is not settled: a stack more or less
  if (code.own == OwnCode::dbrx && !options.keeps_formats) return "another engine than one device";
  // its decays keep the format that the model was made in: products of two formats
  if (m.kind == MixerKind::lightning && options.casts_layer_inputs) return "a compute format of its own";
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
  if ((state || convolved) && (options.padding_mask || options.ulysses > 1))
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
  if (const std::string experts = unsupported_experts(code, layer, options); !experts.empty()) return experts;
  if (options.ulysses == 1 || options.kernels == Kernels::torchtitan) return {};
  if (m.heads % options.ulysses != 0) return "Ulysses that does not divide the heads";
  if (options.kernels != Kernels::hf_flash) return "Ulysses with another kernel set than hf_flash";
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

namespace {

/// What the functions of one layer share.
struct LayerRunner {
  Eager& g;
  const Architecture& a;
  const FamilyCode& code;
  const Layer& layer;
  const LayerLeaves& w;
  const KernelOptions& options;
  const LayerContext& context;

  Tensor norm(const Tensor& x, const NormLeaf& leaf, const char* name) const {
    if (options.foak.rms_norm) return foak::rms_norm(g, x, leaf.weight, name);
    return run_norm(g, code.norm, x, leaf, name, options.liger);
  }
  /// `residual + hidden_states`, times a number in some families.
  Tensor join(const Tensor& residual, const Tensor& hidden, const char* name) const {
    if (!code.scales_residual) return add(g, residual, hidden, name);
    Tensor scaled = scale(g, hidden, std::string(name) + ".scaled");
    return add(g, residual, std::move(scaled), name);
  }
  Attended attention(const Tensor& x) const {
    g.prefix += "self_attn.";
    const auto run = layer.mixer.kind == MixerKind::mla ? &run_latent_attention : &run_attention;
    Tensor whole = gather_tokens(g, x, options, "gathered");
    Attended out;
    if (layer.mixer.kind == MixerKind::gated_delta) {
      out.output = run_gated_delta(g, layer.mixer, a.hidden, w, options, whole);
    } else if (layer.mixer.kind == MixerKind::short_conv) {
      out.output = run_short_conv(g, layer.mixer, a.hidden, w, options, whole);
    } else if (layer.mixer.kind == MixerKind::lightning) {
      out = run_lightning(g, layer.mixer, a.hidden, w, options, whole);
    } else if (keeps_state(layer.mixer)) {
      out.output = scanned(whole);
    } else if (code.own == OwnCode::gptj) {
      out = run_gptj_attention(g, layer.mixer, a.max_positions, a.hidden, w, options, context, whole);
    } else {
      const DistributedGuard local(g, false);
      out = run(g, code, layer.mixer, a.hidden, w, options, context, whole);
    }
    g.prefix.resize(g.prefix.size() - 10);
    return out;
  }
  Tensor scanned(const Tensor& x) const {
    const auto run = layer.mixer.kind == MixerKind::mamba2 ? &run_mamba2 : &run_mamba;
    return run(g, code, layer.mixer, a.hidden, w, options, x);
  }
  Tensor mlp(const Tensor& x, Tensor& weights) const {
    Tensor routed;
    return mlp(x, weights, routed);
  }
  Tensor mlp(const Tensor& x, Tensor& weights, Tensor& routed) const {
    Tensor whole = gather_tokens(g, x, options, "mlp.gathered");
    const DistributedGuard local(g, false);
    return feed_forward(g, code, layer.feed_forward, a.hidden, whole, w, options, weights, routed);
  }

  /// Norms before, behind, or around both halves: `residual` and `hidden_states` are rebound all along.
  Tensor sequential(const Tensor& x) const {
    const bool before = layer.norm_place != NormPlace::post, behind = layer.norm_place != NormPlace::pre;
    Tensor residual = x, hidden = x, kept, kept_normed, routed;
    if (before) hidden = norm(x, w.before_attention, "input_layernorm");
    if (code.keeps_normed) kept_normed = hidden;
    // `hidden_states, _ = self.self_attn(...)`: eager's probabilities live as long as the layer runs
    Tensor weights, chosen;
    {
      Attended attended = attention(hidden);
      if (code.keeps_attention) kept = attended.output;
      hidden = std::move(attended.output);
      weights = std::move(attended.weights);
      chosen = std::move(attended.chosen);
    }
    if (behind) hidden = norm(Tensor(hidden), w.after_attention, "post_attention_layernorm");
    hidden = join(residual, Tensor(hidden), "attention_residual");
    residual = hidden;
    if (before) hidden = norm(Tensor(hidden), w.before_feed_forward, "pre_feedforward_layernorm");
    if (code.own == OwnCode::dbrx) weights.reset();  // a name of the module around attention and norms
    hidden = mlp(Tensor(hidden), weights, routed);
    if (layer.feed_forward.router_scales)
      hidden = join_experts(g, code, layer.feed_forward, a.hidden, Tensor(hidden), residual, w, options, weights);
    if (behind) hidden = norm(Tensor(hidden), w.after_feed_forward, "post_feedforward_layernorm");
    Tensor out = join(residual, hidden, "output");
    if (layer.per_layer_input > 0) {
      hidden.reset();
      residual = out;
      Tensor joined = join_layer_input(g, code, layer, a.hidden, out, w, context);
      out = std::move(joined);
    }
    if (code.layer_scalar) out = scale_in_place(g, Tensor(out), options.wide_buffers);
    if (context.chosen_out != nullptr && !g.in_backward) *context.chosen_out = std::move(chosen);
    return out;
  }

  /// MiniMaxDecoderLayer.forward: what the norm gave is the residual; both are multiplied by numbers.
  Tensor normed_residual(const Tensor& x) const {
    Tensor hidden = norm(x, w.before_attention, "input_layernorm"), residual = hidden;
    Attended attended = attention(hidden);  // `hidden_states, _`
    hidden = std::move(attended.output);
    hidden = weighted_sum(residual, hidden, "attention_residual");
    hidden = norm(Tensor(hidden), w.before_feed_forward, "pre_feedforward_layernorm");
    residual = hidden;
    Tensor unused;
    hidden = mlp(Tensor(hidden), unused);
    return weighted_sum(residual, hidden, "output");
  }
  Tensor weighted_sum(const Tensor& residual, const Tensor& hidden, const std::string& name) const {
    Tensor left = scale(g, residual, name + ".residual_scaled"), right = scale(g, hidden, name + ".scaled");
    return add(g, std::move(left), std::move(right), name);
  }

  /// MambaBlock.forward
  Tensor single(const Tensor& x) const {
    const Leaf& weight = g.leaves[static_cast<std::size_t>(w.before_attention.weight)];
    Tensor residual = x, hidden;
    {
      Tensor cast = to(g, x, weight.dtype, "input_cast");
      hidden = norm(cast, w.before_attention, "input_layernorm");
    }
    if (layer.wide_residual) residual = to(g, Tensor(residual), DType::fp32, "residual_fp32");
    Tensor weights, mixed = one_half(hidden, weights);
    hidden = std::move(mixed);
    return add(g, residual, hidden, "output");
  }
  Tensor one_half(const Tensor& hidden, Tensor& weights) const {
    if (layer.mixer.kind == MixerKind::none) return mlp(hidden, weights);
    if (layer.mixer.kind == MixerKind::attention) {
      Attended attended = attention(hidden);
      weights = std::move(attended.weights);  // `hidden_states, _`
      return std::move(attended.output);
    }
    g.prefix += "mixer.";
    Tensor mixed = scanned(hidden);
    g.prefix.resize(g.prefix.size() - 6);
    return mixed;
  }

  /// OPT: dropout in the layer; the second half is written out here, on rows of all sequences.
  Tensor flat(const Tensor& x) const {
    const bool before = layer.norm_place == NormPlace::pre;
    Tensor residual = x;
    Tensor hidden = before ? norm(x, w.before_attention, "input_layernorm") : x;
    Attended attended = attention(hidden);
    hidden = std::move(attended.output);
    drop(hidden);
    Tensor sum = add(g, residual, hidden, "attention_residual");
    hidden = std::move(sum);
    if (!before) hidden = norm(Tensor(hidden), w.after_attention, "post_attention_layernorm");
    hidden.shape = {T, Dim(a.hidden)};
    residual = hidden;
    if (before) {
      Tensor normed = norm(hidden, w.before_feed_forward, "pre_feedforward_layernorm");
      hidden = std::move(normed);
    }
    hidden = plain_mlp(g, code, std::move(hidden), {T}, a.hidden, layer.feed_forward, w);
    drop(hidden);
    sum = add(g, residual, hidden, "output");
    sum.shape = {B, S, Dim(a.hidden)};
    if (before) return sum;
    hidden = std::move(sum);
    return norm(hidden, w.after_feed_forward, "post_feedforward_layernorm");
  }
  void drop(Tensor& hidden) const {
    if (!options.hidden_dropout) return;
    Tensor dropped = dropout(g, hidden, "dropped");
    hidden = std::move(dropped);
  }

  /// `outputs = (output, attention_scores)`
  void hand_over(Tensor weights) const {
    if (!code.returns_attention || !weights) return;
    if (g.second_output != nullptr) *g.second_output = weights;
    if (context.returned != nullptr && !g.in_backward) *context.returned = std::move(weights);
  }

  /// Both halves read the same normed input, or each its own norm of the same input.
  Tensor parallel(const Tensor& x) const {
    const bool two = layer.norm_place == NormPlace::parallel_two;
    Attended attended;
    Tensor hidden = norm(x, w.before_attention, "input_layernorm"), fed_in;
    const bool ahead = two && code.parallel_sum == ParallelSum::in_place;  // both norms stand in front, and keep their names
    if (ahead) fed_in = norm(x, w.before_feed_forward, "pre_feedforward_layernorm");
    attended = attention(hidden);
    if (two && !ahead) {
      hidden.reset();
      hidden = norm(x, w.before_feed_forward, "pre_feedforward_layernorm");
    }
    Tensor fed = mlp(ahead ? fed_in : hidden, attended.weights);
    if (two && !ahead) hidden.reset();
    if (code.parallel_sum == ParallelSum::residual_first) {
      Tensor sum = add(g, x, attended.output, "attention_residual");
      return add(g, std::move(sum), fed, "output");
    }
    if (code.parallel_sum == ParallelSum::in_place) {
      Tensor sum = add_in_place(g, fed, attended.output);
      Tensor out = add(g, x, std::move(sum), "output");
      hand_over(std::move(attended.weights));
      return out;
    }
    Tensor sum = two ? add(g, fed, attended.output, "halves") : add(g, attended.output, fed, "halves");
    Tensor out = add(g, std::move(sum), x, "output");
    hand_over(std::move(attended.weights));
    return out;
  }
};

}  // namespace

Tensor run_layer(Eager& g, const Architecture& a, const Layer& layer, const LayerLeaves& w, const KernelOptions& options,
                 const LayerContext& context, const Tensor& x) {
  const FamilyCode& code = family_code(a.family);
  const LayerRunner runner{g, a, code, layer, w, options, context};
  if (code.alibi) {
    Tensor weights;
    Tensor out = run_bloom_layer(g, a, layer, w, options, context, x, weights);
    if (g.second_output != nullptr) *g.second_output = weights;
    if (context.returned != nullptr && !g.in_backward) *context.returned = std::move(weights);
    return out;
  }
  if (layer.altup_inputs > 0) return run_gemma3n_layer(g, a, code, layer, w, options, context, x);
  if (code.own == OwnCode::mpt) {
    Tensor weights;
    Tensor out = run_mpt_layer(g, a, layer, w, options, context, x, weights);
    runner.hand_over(std::move(weights));
    return out;
  }
  if (code.own == OwnCode::minimax) return runner.normed_residual(x);
  if (layer.norm_place == NormPlace::single) return runner.single(x);
  if (layer.norm_place == NormPlace::parallel_one || layer.norm_place == NormPlace::parallel_two) return runner.parallel(x);
  return code.flat_rows ? runner.flat(x) : runner.sequential(x);
}

}  // namespace oomplan
