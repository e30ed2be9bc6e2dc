#include "layers/decoder.hpp"

#include "layers/attention.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::S, axis::T;

/// Families whose modeling file has been read and whose layers below reproduce PyTorch's own figures.
constexpr std::string_view kFamilies[] = {"llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "qwen2_moe", "mixtral"};

/// down_proj(act_fn(gate_proj(x)) * up_proj(x)).
Tensor gated_mlp(Eager& g, const Tensor& x, Shape rows_shape, Dim hidden, Dim width, int gate_w, int up_w, int down_w, const std::string& name) {
  Shape wide = rows_shape;
  wide.push_back(width);
  Tensor gate = linear(g, x, gate_w, -1, T, wide, name + "gate");
  Tensor active = activation(g, std::move(gate), name + "act");
  Tensor up = linear(g, x, up_w, -1, T, wide, name + "up");
  Tensor product = mul(g, std::move(active), std::move(up), name + "product");
  rows_shape.push_back(hidden);
  return linear(g, std::move(product), down_w, -1, T, std::move(rows_shape), name + "down");
}

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
Tensor grouped_experts(Eager& g, const FeedForward& ff, Dim hidden, const Tensor& x_TH, const Routing& routing, const LayerLeaves& w) {
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
    const Shape half{rows, Dim(ff.expert_width)};
    // chunk(2): views; their gradients are put together by one cat
    Tensor gate = projected.alias(half), up = projected.alias(half);
    const Shape whole = projected.shape;
    Tensor pair = projected.alias(whole);
    const bool recorded = g.record(pair, "SplitBackward0", {&projected}, [&g, whole](Gradients in) {
      const DType dtype = in[0] ? in[0].dtype : in[1].dtype;
      return Gradients{g.make("split_backward", whole, dtype, Category::temporaries)};
    }, 2);
    if (recorded) {
      gate.grad_fn = up.grad_fn = pair.grad_fn;
      gate.output = 0;
      up.output = 1;
    }
    pair.reset();
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
  { Tensor range = g.make("experts.range", {rows}, DType::int64); }
  weighted = index_rows(g, weighted, inverse, {rows, hidden}, "experts.restored");
  Tensor summed = sum(g, weighted, {T, hidden}, "experts.sum");
  return to(g, summed, x_TH.dtype, "experts.output");
}

Tensor moe_block(Eager& g, const FeedForward& ff, Dim hidden, const Tensor& x, const LayerLeaves& w) {
  Tensor x_TH = x.alias({T, hidden});
  x_TH.grad_fn = x.grad_fn;
  x_TH.output = x.output;
  Tensor shared;
  if (ff.shared_width > 0) shared = gated_mlp(g, x_TH, {T}, hidden, ff.shared_width, w.shared_gate, w.shared_up, w.shared_down, "shared.");
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

Tensor feed_forward(Eager& g, const FeedForward& ff, Dim hidden, const Tensor& x, const LayerLeaves& w) {
  g.prefix += "mlp.";
  Tensor out = ff.kind == FeedForwardKind::moe ? moe_block(g, ff, hidden, x, w)
                                              : gated_mlp(g, x, {B, S}, hidden, ff.width, w.gate, w.up, w.down, "");
  g.prefix.resize(g.prefix.size() - 4);
  return out;
}

void declare_attention(Eager& g, const Mixer& m, std::int64_t h, DType dtype, LayerLeaves& w) {
  w.q = g.parameter("self_attn.q_proj.weight", {m.q_width(), h}, dtype);
  if (m.q_bias) w.q_bias = g.parameter("self_attn.q_proj.bias", {m.q_width()}, dtype);
  w.k = g.parameter("self_attn.k_proj.weight", {m.k_width(), h}, dtype);
  if (m.k_bias) w.k_bias = g.parameter("self_attn.k_proj.bias", {m.k_width()}, dtype);
  w.v = g.parameter("self_attn.v_proj.weight", {m.v_width(), h}, dtype);
  if (m.v_bias) w.v_bias = g.parameter("self_attn.v_proj.bias", {m.v_width()}, dtype);
  w.o = g.parameter("self_attn.o_proj.weight", {h, m.out_width()}, dtype);
  if (m.out_bias) w.o_bias = g.parameter("self_attn.o_proj.bias", {h}, dtype);
  if (m.qk_norm == QkNorm::head) {
    w.q_norm = g.parameter("self_attn.q_norm.weight", {m.head_dim}, dtype);
    w.k_norm = g.parameter("self_attn.k_norm.weight", {m.head_dim}, dtype);
  }
}

void declare_feed_forward(Eager& g, const FeedForward& ff, std::int64_t h, DType dtype, LayerLeaves& w) {
  if (ff.kind != FeedForwardKind::moe) {
    w.gate = g.parameter("mlp.gate_proj.weight", {ff.width, h}, dtype);
    w.up = g.parameter("mlp.up_proj.weight", {ff.width, h}, dtype);
    w.down = g.parameter("mlp.down_proj.weight", {h, ff.width}, dtype);
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
  bool known = false;
  for (const auto family : kFamilies) known = known || a.family == family;
  if (!known) return "training of the family '" + a.family + "' is not supported yet";
  for (const auto& run : a.runs) {
    const auto& m = run.layer.mixer;
    if (m.kind != MixerKind::attention || run.layer.norm != NormKind::rms || run.layer.norm_place != NormPlace::pre)
      return "training of this layer of '" + a.family + "' is not supported yet";
    if (m.rotary_dim != 0 && m.rotary_dim != m.head_dim) return "partial rotary positions are not supported yet";
    if (options.ulysses > 1 && m.heads % options.ulysses != 0) return "Ulysses must divide the heads";
    if (options.ulysses > 1 && options.kernels != Kernels::hf_flash) return "Ulysses with another kernel set than hf_flash is not supported yet";
  }
  return {};
}

LayerLeaves declare_layer(Eager& g, const Architecture& a, const Layer& layer, DType dtype) {
  LayerLeaves w;
  const std::int64_t h = a.hidden;
  declare_attention(g, layer.mixer, h, dtype, w);
  declare_feed_forward(g, layer.feed_forward, h, dtype, w);
  w.input_norm = g.parameter("input_layernorm.weight", {h}, dtype);
  w.post_attention_norm = g.parameter("post_attention_layernorm.weight", {h}, dtype);
  return w;
}

Tensor run_norm(Eager& g, NormKind kind, const Tensor& x, int weight, const std::string& name) {
  // input_dtype = x.dtype; x = x.to(fp32); x = x * rsqrt(x.pow(2).mean(-1, keepdim=True) + eps); weight * x.to(input_dtype)
  (void)kind;
  Tensor hidden = to(g, x, DType::fp32, name + ".fp32");
  Tensor variance;
  {
    Tensor squares = pow2(g, hidden);
    variance = mean_last(g, std::move(squares));
  }
  {
    Tensor shifted = add_scalar(g, variance, name + ".variance");
    Tensor root = rsqrt(g, std::move(shifted), name + ".rstd");
    Tensor normed = mul(g, hidden, std::move(root), name + ".normed_fp32");
    hidden = std::move(normed);
  }
  Tensor cast = to(g, hidden, x.dtype, name + ".normed");
  return mul(g, g.leaf(weight), std::move(cast), name + ".output");
}

Tensor run_layer(Eager& g, const Architecture& a, const Layer& layer, const LayerLeaves& w, const KernelOptions& options,
                 const LayerContext& context, const Tensor& x) {
  Tensor residual = x;
  Tensor hidden = run_norm(g, layer.norm, x, w.input_norm, "input_layernorm");
  Tensor weights;  // `hidden_states, _ = self.self_attn(...)`: eager's probabilities live as long as the layer runs
  {
    g.prefix += "self_attn.";
    Attended attended = run_attention(g, layer.mixer, a.hidden, w, options, context, hidden);
    g.prefix.resize(g.prefix.size() - 10);
    hidden = std::move(attended.output);
    weights = std::move(attended.weights);
  }
  hidden = add(g, residual, hidden, "attention_residual");
  residual = hidden;
  hidden = run_norm(g, layer.norm, hidden, w.post_attention_norm, "post_attention_layernorm");
  {
    Tensor out = feed_forward(g, layer.feed_forward, a.hidden, hidden, w);
    hidden = std::move(out);
  }
  return add(g, residual, hidden, "output");
}

}  // namespace oomplan
