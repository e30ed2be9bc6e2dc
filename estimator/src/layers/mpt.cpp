#include "layers/mpt.hpp"

#include "layers/norms.hpp"
#include "layers/ops.hpp"
#include "layers/ops_state.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::S, axis::T;

/// attention_scores + position_bias: the sum is fp32 where the bias is; nothing is saved.
Tensor biased(Eager& g, Tensor scores, DType bias) {
  Tensor out = g.make("attention.biased", scores.shape, bias == DType::fp32 ? bias : scores.dtype);
  g.record(out, "AddBackward0", {&scores}, [](Gradients in) { return in; });
  return out;
}

/// MptAttention.forward
Tensor attention(Eager& g, const Mixer& m, Dim hidden, const LayerLeaves& w, const KernelOptions& options,
                 const LayerContext& context, const Tensor& x, Tensor& weights) {
  const Shape by_head{B, Dim(m.heads), S, Dim(m.head_dim)}, part{B, S, hidden};
  const Tensor fused = linear(g, x, w.qkv, -1, T, {B, S, Dim(3) * hidden}, "qkv");
  const std::vector<Tensor> parts = split(g, fused, {part, part, part});
  const Tensor query = view(parts[0], by_head), key = view(parts[1], by_head), value = view(parts[2], by_head);
  const auto folded = [&](const Tensor& t, const char* name, const Shape& as) {
    return options.several_sequences ? copy(g, t, as, name) : t;
  };
  const Shape transposed{B, Dim(m.heads), Dim(m.head_dim), S};
  Tensor scores;
  {
    Tensor product;
    {
      Tensor q = folded(query, "attention.q_contiguous", by_head), k = folded(key, "attention.k_contiguous", transposed);
      product = matmul(g, std::move(q), std::move(k), {B, Dim(m.heads), S, S}, "attention.scores");
    }
    scores = scale(g, std::move(product), "attention.scaled");
  }
  Tensor next = biased(g, scores, context.alibi.dtype);
  scores = std::move(next);
  next = masked_fill(g, scores, context.mask, "attention.masked");
  scores = std::move(next);
  {
    Tensor wide = to(g, scores, DType::fp32, "attention.scores_fp32");
    Tensor probabilities = softmax(g, std::move(wide), DType::fp32, "attention.probabilities");
    weights = to(g, std::move(probabilities), value.dtype, "attention.weights");
  }
  Tensor out;
  {
    Tensor v = folded(value, "attention.v_contiguous", by_head);
    out = matmul(g, weights, std::move(v), by_head, "attention.out_heads");
  }
  Tensor joined = copy(g, out, {B, S, Dim(m.heads), Dim(m.head_dim)}, "attention.out");
  out = view(std::move(joined), part);
  return linear(g, out, w.o, -1, T, part, "o");
}

}  // namespace

Tensor run_mpt_layer(Eager& g, const Architecture& a, const Layer& layer, const LayerLeaves& w, const KernelOptions& options,
                     const LayerContext& context, const Tensor& x, Tensor& weights) {
  Tensor normed = run_norm(g, NormCode::layer, x, w.before_attention, "norm_1");
  g.prefix += "self_attn.";
  const Tensor attended = attention(g, layer.mixer, a.hidden, w, options, context, normed, weights);
  g.prefix.resize(g.prefix.size() - 10);
  const Tensor hidden = add(g, attended, x, "attention_residual");
  Tensor next = run_norm(g, NormCode::layer, hidden, w.before_feed_forward, "norm_2");
  normed = std::move(next);
  const Dim width = layer.feed_forward.width;
  Tensor states;
  {
    Tensor up = linear(g, normed, w.up, -1, T, {B, S, width}, "mlp.fc1");
    states = activation(g, std::move(up), "mlp.act");
  }
  const Tensor down = linear(g, states, w.down, -1, T, {B, S, Dim(a.hidden)}, "mlp.fc2");
  return add(g, down, hidden, "output");
}

Tensor make_mpt_alibi(Eager& g, std::int64_t heads, std::int64_t positions) {
  return g.make("alibi", {Dim(heads), Dim(1), Dim(positions)}, DType::fp32, Category::buffers);
}

}  // namespace oomplan
