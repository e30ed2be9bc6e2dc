#include "layers/decoder.hpp"

#include "layers/attention.hpp"
#include "layers/mlp.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::S, axis::T;

/// torch._grouped_mm on sorted rows; saves input, weight and offsets.
Tensor grouped_linear(Eager& g, Tensor x, int weight, const Tensor& offsets, Shape out_shape, const std::string& name) {
  Tensor w = g.leaf(weight);
  const bool recorded = g.will_record({&x, &w});
  Saved saved_x = recorded && w.needs_grad() ? g.save(x) : Saved();
  Saved saved_offsets = recorded ? g.save(offsets) : Saved();
  Tensor out = g.make(name, std::move(out_shape), x.dtype);
  if (!recorded) return out;
  const bool for_x = x.needs_grad(), for_w = w.needs_grad();
  const Shape x_shape = x.shape, w_shape = w.shape;
  g.record(out, "GroupedMmBackward0", {&x, &w}, [=, &g](Gradients in) {
    (void)saved_offsets.get();
    Gradients grads(2);
    if (for_w) {
      (void)saved_x.get();
      grads[1] = g.make(name + ".weight_gradient", w_shape, in[0].dtype, Category::gradients);
    }
    if (for_x) grads[0] = g.make("grouped_mm_backward", x_shape, in[0].dtype, Category::temporaries);
    return grads;
  });
  return out;
}

/// `_, routing_weights, selected_experts = self.gate(x)`: the underscore keeps the logits as long as the block runs.
struct Routing {
  Tensor logits, weights, indices;
};

/// Router of Qwen2-MoE, Qwen3-MoE and Mixtral: softmax in fp32, top-k, normalised in place, cast back (not in Mixtral).
Routing route(Eager& g, const FeedForward& ff, const Tensor& x_TH, int weight) {
  const Dim experts = ff.experts, top = ff.experts_per_token;
  Tensor logits = linear(g, x_TH, weight, -1, T, {T, experts}, "router.logits");
  Tensor source = ff.weights_in_fp32 ? to(g, logits, DType::fp32, "router.logits_fp32") : logits;
  Tensor probabilities = softmax(g, std::move(source), DType::fp32, "router.probabilities");
  Routing out;
  // topk: values in fp32, indices in int64; indices are saved
  out.indices = g.make("router.indices", {T, top}, DType::int64);
  Tensor values;
  {
    const bool recorded = g.will_record({&probabilities});
    values = g.make("router.top_values", {T, top}, DType::fp32);
    if (recorded) {
      Saved indices = g.save(out.indices);
      const Shape whole = probabilities.shape;
      g.record(values, "TopkBackward0", {&probabilities}, [&g, indices, whole](Gradients) {
        (void)indices.get();
        return Gradients{g.make("topk_backward", whole, DType::fp32, Category::temporaries)};
      });
    }
  }
  if (ff.normalise_top_k) {
    Tensor total = sum(g, values, {T, 1}, "router.total");
    // `/=` works on a clone's storage where the old value must stay for the divisor's gradient
    const bool recorded = g.will_record({&values, &total});
    Saved saved_values = recorded ? g.save(g.make("router.values", {T, top}, DType::fp32)) : Saved();
    Saved saved_total = recorded ? g.save(total) : Saved();
    Tensor divided = values.alias(values.shape);
    if (recorded) {
      g.record(divided, "DivBackward0", {&values, &total}, [=, &g](Gradients in) {
        (void)saved_values.get();
        (void)saved_total.get();
        return Gradients{g.make("div_backward", in[0].shape, in[0].dtype, Category::temporaries),
                         g.make("div_backward", in[0].shape, in[0].dtype, Category::temporaries)};
      });
    }
    values = std::move(divided);
  }
  out.weights = ff.weights_in_fp32 ? std::move(values) : to(g, std::move(values), logits.dtype, "router.weights");
  out.logits = std::move(logits);
  return out;
}

/// grouped_mm_experts_forward: rows sorted by expert, two grouped products, weighted, put back, summed over k.
Tensor grouped_experts(Eager& g, const FeedForward& ff, Dim hidden, const Tensor& x_TH, const Routing& routing,
                       const LayerLeaves& w) {
  const Dim rows = T * Dim(ff.experts_per_token);
  Tensor expert_ids = g.make("experts.sorted_ids", {rows}, DType::int64);
  Tensor permutation = g.make("experts.permutation", {rows}, DType::int64);
  Tensor selected;
  {
    Tensor token = g.make("experts.token", {rows}, DType::int64);  // perm // top_k, saved by the index
    selected = index_rows(g, x_TH, token, {rows, hidden}, "experts.input");
  }
  Tensor weights = index_rows(g, routing.weights, permutation, {rows}, "experts.weights");
  Tensor narrow = g.make("experts.ids_int32", {rows}, DType::int32);
  Tensor counts = g.make("experts.counts", {Dim(ff.experts)}, DType::int32);
  Tensor offsets = g.make("experts.offsets", {Dim(ff.experts)}, DType::int32);
  Tensor projected = grouped_linear(g, selected, w.experts_gate_up, offsets, {rows, Dim(2 * ff.expert_width)}, "experts.gate_up");
  {
    Halves halves = chunk(g, projected, {rows, Dim(ff.expert_width)});
    Tensor gate = std::move(halves.first), up = std::move(halves.second);
    Tensor active = activation(g, gate, "experts.act");
    Tensor product = mul(g, std::move(active), up, "experts.product");
    gate.reset();
    up.reset();
    projected = std::move(product);
  }
  projected = grouped_linear(g, projected, w.experts_down, offsets, {rows, hidden}, "experts.down");
  Tensor weighted;
  {
    Tensor column = weights.alias({rows, Dim(1)});
    column.grad_fn = weights.grad_fn;
    weighted = mul(g, projected, std::move(column), "experts.weighted");
  }
  Tensor inverse = g.make("experts.inverse", {rows}, DType::int64);
  {
    Tensor range = g.make("experts.range", {rows}, DType::int64);
  }
  weighted = index_rows(g, weighted, inverse, {rows, hidden}, "experts.restored");
  Tensor summed = sum(g, weighted, {T, hidden}, "experts.sum");
  return to(g, summed, x_TH.dtype, "experts.output");
}

Tensor moe_block(Eager& g, const FeedForward& ff, Dim hidden, const Tensor& x, const LayerLeaves& w) {
  Tensor x_TH = x.alias({T, hidden});
  x_TH.grad_fn = x.grad_fn;
  x_TH.output = x.output;
  Tensor shared;
  if (ff.shared_width > 0)
    shared = gated_mlp(g, x_TH, {T}, hidden, ff.shared_width, {.gate = w.shared_gate, .up = w.shared_up, .down = w.shared_down},
                       "shared.");
  Routing routing = route(g, ff, x_TH, w.router);
  Tensor out = grouped_experts(g, ff, hidden, x_TH, routing, w);
  if (ff.shared_width > 0) {
    if (ff.shared_gate) {
      Tensor logit = linear(g, x_TH, w.shared_router, -1, T, {T, Dim(1)}, "shared.gate_logit");
      Tensor gate = sigmoid(g, std::move(logit), "shared.gate");
      shared = mul(g, std::move(gate), std::move(shared), "shared.gated");
    }
    out = add(g, std::move(out), shared, "moe.output");
  }
  out.shape = {B, S, hidden};
  return out;
}

GatedLeaves gated_leaves(const LayerLeaves& w) { return {w.gate, w.gate_bias, w.up, w.up_bias, w.gate_up, w.down, w.down_bias}; }

Tensor feed_forward(Eager& g, const FeedForward& ff, Dim hidden, const Tensor& x, const LayerLeaves& w, bool drops) {
  g.prefix += "mlp.";
  Tensor out = ff.kind == FeedForwardKind::moe ? moe_block(g, ff, hidden, x, w)
                                               : gated_mlp(g, x, {B, S}, hidden, ff.width, gated_leaves(w), "");
  if (drops) {
    Tensor dropped = dropout(g, out, "dropped");
    out = std::move(dropped);
  }
  g.prefix.resize(g.prefix.size() - 4);
  return out;
}

void declare_attention(Eager& g, const Mixer& m, std::int64_t h, DType dtype, LayerLeaves& w) {
  if (m.fused_qkv) {
    w.o = g.parameter("self_attn.o_proj.weight", {h, m.out_width()}, dtype);
    w.qkv = g.parameter("self_attn.qkv_proj.weight", {m.q_width() + m.k_width() + m.v_width(), h}, dtype);
    return;
  }
  w.q = g.parameter("self_attn.q_proj.weight", {m.q_width(), h}, dtype);
  if (m.q_bias) w.q_bias = g.parameter("self_attn.q_proj.bias", {m.q_width()}, dtype);
  w.k = g.parameter("self_attn.k_proj.weight", {m.k_width(), h}, dtype);
  if (m.k_bias) w.k_bias = g.parameter("self_attn.k_proj.bias", {m.k_width()}, dtype);
  w.v = g.parameter("self_attn.v_proj.weight", {m.v_width(), h}, dtype);
  if (m.v_bias) w.v_bias = g.parameter("self_attn.v_proj.bias", {m.v_width()}, dtype);
  w.o = g.parameter("self_attn.o_proj.weight", {h, m.out_width()}, dtype);
  if (m.out_bias) w.o_bias = g.parameter("self_attn.o_proj.bias", {h}, dtype);
  if (m.qk_norm == QkNorm::none) return;
  const bool by_head = m.qk_norm == QkNorm::head;
  w.q_norm.weight = g.parameter("self_attn.q_norm.weight", {by_head ? m.head_dim : m.q_width()}, dtype);
  w.k_norm.weight = g.parameter("self_attn.k_norm.weight", {by_head ? m.head_dim : m.k_width()}, dtype);
}

void declare_feed_forward(Eager& g, const FeedForward& ff, std::int64_t h, DType dtype, LayerLeaves& w) {
  if (ff.kind != FeedForwardKind::moe) {
    const auto bias = [&](const char* name, std::int64_t width) { return ff.bias ? g.parameter(name, {width}, dtype) : -1; };
    if (ff.fused_gate_up) {
      w.gate_up = g.parameter("mlp.gate_up_proj.weight", {2 * ff.width, h}, dtype);
    } else {
      w.gate = g.parameter("mlp.gate_proj.weight", {ff.width, h}, dtype);
      w.gate_bias = bias("mlp.gate_proj.bias", ff.width);
      w.up = g.parameter("mlp.up_proj.weight", {ff.width, h}, dtype);
      w.up_bias = bias("mlp.up_proj.bias", ff.width);
    }
    w.down = g.parameter("mlp.down_proj.weight", {h, ff.width}, dtype);
    w.down_bias = bias("mlp.down_proj.bias", h);
    return;
  }
  // Qwen2-MoE and Mixtral register the router in front of the experts, Qwen3-MoE behind them
  const bool router_first = ff.shared_gate || ff.weights_in_fp32;
  if (router_first) w.router = g.parameter("mlp.gate.weight", {ff.experts, h}, dtype);
  w.experts_gate_up = g.parameter("mlp.experts.gate_up_proj", {ff.experts, 2 * ff.expert_width, h}, dtype);
  w.experts_down = g.parameter("mlp.experts.down_proj", {ff.experts, h, ff.expert_width}, dtype);
  if (!router_first) w.router = g.parameter("mlp.gate.weight", {ff.experts, h}, dtype);
  if (ff.shared_width > 0) {
    w.shared_gate = g.parameter("mlp.shared_expert.gate_proj.weight", {ff.shared_width, h}, dtype);
    w.shared_up = g.parameter("mlp.shared_expert.up_proj.weight", {ff.shared_width, h}, dtype);
    w.shared_down = g.parameter("mlp.shared_expert.down_proj.weight", {h, ff.shared_width}, dtype);
    if (ff.shared_gate) w.shared_router = g.parameter("mlp.shared_expert_gate.weight", {1, h}, dtype);
  }
}

}  // namespace

std::string unsupported(const Architecture& a, const KernelOptions& options) {
  const FamilyCode* code = find_family_code(a.family);
  if (code == nullptr) return "training of the family '" + a.family + "' is not supported yet";
  for (const auto& run : a.runs) {
    const auto& m = run.layer.mixer;
    const auto place = run.layer.norm_place;
    if (m.kind != MixerKind::attention || run.layer.feed_forward.kind == FeedForwardKind::plain || m.clip ||
        (place != NormPlace::pre && place != NormPlace::post && place != NormPlace::pre_and_post &&
         place != NormPlace::parallel_one))
      return "training of this layer of '" + a.family + "' is not supported yet";
    if (m.rotary_dim != 0 && m.rotary_dim != m.head_dim && !code->rotary.splits_head)
      return "partial rotary positions of '" + a.family + "' are not supported yet";
    if (code->norm == NormCode::layer_by_hand && m.qk_norm != QkNorm::none)
      return "norms of queries and keys of '" + a.family + "' are not supported yet";
    if (options.ulysses > 1 && m.heads % options.ulysses != 0) return "Ulysses must divide the heads";
    if (options.ulysses > 1 && options.kernels != Kernels::hf_flash)
      return "Ulysses with another kernel set than hf_flash is not supported yet";
  }
  const bool wide = options.parameters == DType::fp32 && !options.autocast;
  if (a.attention_dropout > 0 && options.kernels == Kernels::hf_sdpa && (options.sdpa_math || wide))
    return "attention dropout in SDPA's math kernel is not supported yet";
  return {};
}

LayerLeaves declare_layer(Eager& g, const Architecture& a, const Layer& layer, DType dtype) {
  LayerLeaves w;
  const std::int64_t h = a.hidden;
  declare_attention(g, layer.mixer, h, dtype, w);
  declare_feed_forward(g, layer.feed_forward, h, dtype, w);
  const auto norm = [&](const char* name) { return declare_norm(g, layer.norm, name, h, dtype); };
  if (layer.norm_place != NormPlace::post) w.before_attention = norm("input_layernorm");
  if (layer.norm_place == NormPlace::pre_and_post || layer.norm_place == NormPlace::post)
    w.after_attention = norm("post_attention_layernorm");
  if (layer.norm_place == NormPlace::pre || layer.norm_place == NormPlace::pre_and_post)
    w.before_feed_forward = norm("pre_feedforward_layernorm");
  if (layer.norm_place == NormPlace::pre_and_post || layer.norm_place == NormPlace::post)
    w.after_feed_forward = norm("post_feedforward_layernorm");
  return w;
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

  Tensor norm(const Tensor& x, const NormLeaf& leaf, const char* name) const { return run_norm(g, code.norm, x, leaf, name); }
  /// `residual + hidden_states`, times a number in some families.
  Tensor join(const Tensor& residual, const Tensor& hidden, const char* name) const {
    if (!code.scales_residual) return add(g, residual, hidden, name);
    Tensor scaled = scale(g, hidden, std::string(name) + ".scaled");
    return add(g, residual, std::move(scaled), name);
  }
  Attended attention(const Tensor& x) const {
    g.prefix += "self_attn.";
    Attended out = run_attention(g, code, layer.mixer, a.hidden, w, options, context, x);
    g.prefix.resize(g.prefix.size() - 10);
    return out;
  }
  Tensor mlp(const Tensor& x) const { return feed_forward(g, layer.feed_forward, a.hidden, x, w, options.hidden_dropout); }

  /// Norms before, behind, or around both halves: `residual` and `hidden_states` are rebound all along.
  Tensor sequential(const Tensor& x) const {
    const bool before = layer.norm_place != NormPlace::post, behind = layer.norm_place != NormPlace::pre;
    Tensor residual = x, hidden = x;
    if (before) hidden = norm(x, w.before_attention, "input_layernorm");
    Tensor weights;  // `hidden_states, _ = self.self_attn(...)`: eager's probabilities live as long as the layer runs
    {
      Attended attended = attention(hidden);
      hidden = std::move(attended.output);
      weights = std::move(attended.weights);
    }
    if (behind) hidden = norm(Tensor(hidden), w.after_attention, "post_attention_layernorm");
    hidden = join(residual, Tensor(hidden), "attention_residual");
    residual = hidden;
    if (before) hidden = norm(Tensor(hidden), w.before_feed_forward, "pre_feedforward_layernorm");
    hidden = mlp(Tensor(hidden));
    if (behind) hidden = norm(Tensor(hidden), w.after_feed_forward, "post_feedforward_layernorm");
    return join(residual, hidden, "output");
  }

  /// Both halves read the same normed input (Cohere).
  Tensor parallel(const Tensor& x) const {
    Tensor hidden = norm(x, w.before_attention, "input_layernorm");
    Attended attended = attention(hidden);
    Tensor fed = mlp(hidden);
    Tensor sum = add(g, x, attended.output, "attention_residual");
    return add(g, std::move(sum), fed, "output");
  }
};

}  // namespace

Tensor run_layer(Eager& g, const Architecture& a, const Layer& layer, const LayerLeaves& w, const KernelOptions& options,
                 const LayerContext& context, const Tensor& x) {
  const LayerRunner runner{g, a, family_code(a.family), layer, w, options, context};
  return layer.norm_place == NormPlace::parallel_one ? runner.parallel(x) : runner.sequential(x);
}

}  // namespace oomplan
