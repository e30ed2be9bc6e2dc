#include "layers/normed_attention.hpp"

#include "layers/folded.hpp"
#include "layers/moe.hpp"
#include "layers/ops.hpp"
#include "layers/rotary.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::S, axis::T;

/// What gives queries, keys or values, seen as heads.
Tensor heads_of(Eager& g, const Tensor& x, int weight, int bias, std::int64_t heads, std::int64_t width,
                const std::string& name) {
  const Dim tokens = x.shape[1];
  Tensor out = linear(g, x, weight, bias, B * tokens, {B, tokens, Dim(heads * width)}, name);
  out.shape = {B, tokens, Dim(heads), Dim(width)};
  return out;
}

/// transpose(1, 2)
Tensor by_head(Tensor x) {
  std::swap(x.shape[1], x.shape[2]);
  return x;
}

Tensor placed(Eager& g, const FamilyCode& code, Tensor x, const NormLeaf& norm, const LayerContext& context,
              const std::string& name) {
  Tensor normed = run_norm(g, code.norm, x, norm, name + "_norm");
  x = std::move(normed);
  Tensor rotated = rotate(g, context, x, name + "_rotary");
  x = std::move(rotated);
  return by_head(std::move(x));
}

SharedKeys own_keys(Eager& g, const FamilyCode& code, const Mixer& m, const LayerLeaves& w, const LayerContext& context,
                    const Tensor& x) {
  SharedKeys out;
  out.key = heads_of(g, x, w.k, w.k_bias, m.kv_heads, m.head_dim, "k");
  const bool first = !code.values_last;  // Gemma 4 projects values in front of the keys' norm
  const auto values = [&] { return m.key_is_value ? out.key : heads_of(g, x, w.v, w.v_bias, m.kv_heads, m.head_dim, "v"); };
  if (first) out.value = values();
  Tensor key = placed(g, code, std::move(out.key), w.k_norm, context, "k");
  out.key = std::move(key);
  if (!first) out.value = values();
  Tensor normed = run_norm(g, code.norm, out.value, {}, "v_norm");
  out.value = by_head(std::move(normed));
  return out;
}

/// Gemma4TextRouter: the probabilities are the layer's underscore.
Routing route_scaled(Eager& g, const FamilyCode& code, const FeedForward& ff, Tensor x, const LayerLeaves& w) {
  const Dim top = ff.experts_per_token;
  Tensor hidden = run_norm(g, code.norm, x, {}, "router.norm");
  {
    Tensor scaled = mul(g, hidden, g.leaf(w.router_scale), "router.scaled");
    hidden = scale(g, std::move(scaled), "router.input");
  }
  Tensor scores = linear(g, hidden, w.router, -1, T, {T, Dim(ff.experts)}, "router.scores");
  Routing out;
  out.logits = softmax(g, scores, DType::fp32, "router.probabilities");
  TopK chosen = topk(g, out.logits, {T, top}, "router.top");
  out.indices = std::move(chosen.indices);
  Tensor values = std::move(chosen.values);
  {
    Tensor total = sum(g, values, {T, 1}, "router.total");
    Tensor divided = divide_in_place(g, values, total);
    values = std::move(divided);
  }
  Tensor scales = index_rows(g, g.leaf(w.expert_scales), out.indices, {T, top}, "router.expert_scales");
  out.weights = mul(g, values, std::move(scales), "router.weights");
  return out;
}

}  // namespace

Attended run_normed_attention(Eager& g, const FamilyCode& code, const Mixer& m, std::int64_t hidden, const LayerLeaves& w,
                              const KernelOptions& options, const LayerContext& context, const Tensor& x) {
  const Dim tokens = x.shape[1];
  SharedKeys* shared = nullptr;
  if (context.shared) shared = m.span == AttentionSpan::full ? &context.shared->full : &context.shared->windowed;
  Attention in;
  in.query = placed(g, code, heads_of(g, x, w.q, w.q_bias, m.heads, m.head_dim, "q"), w.q_norm, context, "q");
  SharedKeys keys = m.shared_kv ? *shared : own_keys(g, code, m, w, context, x);
  if (m.stores_kv) *shared = keys;
  in.key = std::move(keys.key);
  in.value = std::move(keys.value);
  in.mask = context.mask;
  in.out_shape = {B, tokens, Dim(m.heads), Dim(m.head_dim)};
  Attended out = attend(g, in, options);
  out.output.shape = {B, tokens, Dim(m.q_width())};
  Tensor projected = linear(g, out.output, w.o, w.o_bias, B * tokens, {B, tokens, Dim(hidden)}, "o");
  out.output = std::move(projected);
  return out;
}

Tensor join_experts(Eager& g, const FamilyCode& code, const FeedForward& ff, std::int64_t hidden, const Tensor& dense,
                    const Tensor& residual, const LayerLeaves& w, const KernelOptions& options, Tensor& weights) {
  Tensor first = run_norm(g, code.norm, dense, w.after_dense, "post_feedforward_layernorm_1");
  Tensor flat = residual.alias({T, Dim(hidden)});
  g.record(flat, "ViewBackward0", {&residual},
           [shape = residual.shape](const Gradients& in) { return Gradients{in[0].alias(shape)}; });
  Routing routing = route_scaled(g, code, ff, flat, w);
  weights = routing.logits;
  Tensor second = run_norm(g, code.norm, flat, w.before_experts, "pre_feedforward_layernorm_2");
  Tensor routed = routed_experts(g, ff, hidden, second, routing, w, options);
  routed.shape = {B, S, Dim(hidden)};
  second = std::move(routed);
  Tensor normed = run_norm(g, code.norm, second, w.after_experts, "post_feedforward_layernorm_2");
  second = std::move(normed);
  return add(g, first, second, "branches");
}

Tensor join_layer_input(Eager& g, const FamilyCode& code, const Layer& layer, std::int64_t hidden, const Tensor& x,
                        const LayerLeaves& w, const LayerContext& context) {
  const Shape narrow{B, S, Dim(layer.per_layer_input)};
  Tensor states = linear(g, x, w.layer_input_gate, -1, T, narrow, "layer_input.gate");
  Tensor next = activation(g, states, "layer_input.act");
  states = std::move(next);
  next = mul(g, states, context.layer_input, "layer_input.product");
  states = std::move(next);
  next = linear(g, states, w.layer_projection, -1, T, {B, S, Dim(hidden)}, "layer_input.projected");
  states = std::move(next);
  next = run_norm(g, code.norm, states, w.after_layer_input, "post_per_layer_input_norm");
  states = std::move(next);
  return add(g, x, states, "layer_input.residual");
}

}  // namespace oomplan
