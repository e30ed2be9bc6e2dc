#include "layers/decoder.hpp"

#include "layers/attention.hpp"
#include "layers/bloom.hpp"
#include "layers/dbrx.hpp"
#include "layers/decoder_support.hpp"
#include "layers/delta.hpp"
#include "layers/families.hpp"
#include "layers/foak.hpp"
#include "layers/gemma3n.hpp"
#include "layers/gptj.hpp"
#include "layers/lightning.hpp"
#include "layers/llama4.hpp"
#include "layers/mamba.hpp"
#include "layers/mamba2.hpp"
#include "layers/mla.hpp"
#include "layers/mlp.hpp"
#include "layers/moe.hpp"
#include "layers/mpt.hpp"
#include "layers/normed_attention.hpp"
#include "layers/ops.hpp"
#include "layers/short_conv.hpp"
#include "layers/tensor_parallel.hpp"

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
