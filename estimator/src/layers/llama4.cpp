#include "layers/llama4.hpp"

#include "layers/mlp.hpp"
#include "layers/ops.hpp"
#include "layers/ops_state.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::S, axis::T;

/// full_like(logits, -inf).scatter_(1, indices, values): saves the indices.
Tensor scattered(Eager& g, const Tensor& logits, const Tensor& values, const Tensor& index) {
  Tensor out = g.make("router.scores", logits.shape, logits.dtype);
  if (!g.will_record({&values})) return out;
  Saved saved = g.save(index);
  g.record(out, "ScatterBackward0", {&values}, [&g, saved, shape = values.shape](const Gradients& in) {
    (void)saved.get();
    return Gradients{gradient(g, "scatter_backward", shape, in[0].dtype)};
  });
  return out;
}

/// hidden_states.repeat(E, 1): its gradient is summed over the copies.
Tensor repeated(Eager& g, const Tensor& x, Dim copies) {
  Tensor out = g.make("experts.repeated", {copies * T, x.shape.back()}, x.dtype);
  g.record(out, "RepeatBackward0", {&x},
           [&g, shape = x.shape](const Gradients& in) { return Gradients{gradient(g, "repeat_backward", shape, in[0].dtype)}; });
  return out;
}

Tensor stack_of(Eager& g, int leaf) {
  Tensor w = g.leaf(leaf);
  return g.autocast && w.dtype == DType::fp32 ? g.autocast_weight(w) : w;
}

Tensor batched(Eager& g, Tensor x, int weight, Shape out, const std::string& name) {
  Tensor stacked = stack_of(g, weight);  // autocast casts the last argument first
  if (g.autocast && x.dtype == DType::fp32) x = to(g, std::move(x), DType::bf16, name + ".input_bf16");
  return matmul(g, std::move(x), std::move(stacked), std::move(out), name);
}

/// Llama4TextExperts.forward
Tensor run(Eager& g, const FeedForward& ff, Dim hidden, Tensor rows, const LayerLeaves& w) {
  const Dim e = ff.experts, width = ff.expert_width;
  const Shape half{e, T, width};
  rows.shape = {e, T, hidden};
  Tensor both = batched(g, rows, w.experts_gate_up, {e, T, Dim(2) * width}, "experts.gate_up");
  const std::vector<Tensor> halves = split(g, both, {half, half});
  Tensor next;
  {
    Tensor active = activation(g, halves[0], "experts.act");
    Tensor product = mul(g, halves[1], std::move(active), "experts.product");
    next = batched(g, std::move(product), w.experts_down, {e, T, hidden}, "experts.down");
  }
  return next;
}

}  // namespace

Mixed every_expert(Eager& g, const FeedForward& ff, std::int64_t hidden, const Tensor& x, const LayerLeaves& w,
                   const KernelOptions& options) {
  const Dim e = ff.experts, h(hidden);
  Tensor flat = x.alias({T, h});
  g.record(flat, "ViewBackward0", {&x}, [shape = x.shape](const Gradients& in) { return Gradients{in[0].alias(shape)}; });
  Mixed out;
  out.weights = linear(g, flat, w.router, -1, T, {T, e}, "router.logits");
  Tensor scores;
  {
    TopK chosen = topk(g, out.weights, {T, Dim(ff.experts_per_token)}, "router.top");
    scores = scattered(g, out.weights, chosen.values, chosen.indices);
    Tensor wide = to(g, scores, DType::fp32, "router.scores_fp32");
    Tensor open = sigmoid(g, std::move(wide), "router.sigmoid");
    scores = to(g, std::move(open), out.weights.dtype, "router.weights");
  }
  Tensor rows = repeated(g, flat, e);
  {
    Tensor column = copy(g, scores, {e, T}, "router.column");
    column.shape = {e * T, Dim(1)};
    Tensor weighted = mul(g, rows, std::move(column), "experts.input");
    rows = std::move(weighted);
  }
  Tensor routed = run(g, ff, h, rows, w);
  Tensor shared = gated_mlp(g, flat, {T}, h, ff.shared_width, {.gate = w.shared_gate, .up = w.shared_up, .down = w.shared_down},
                            "shared.", options);
  out.output = add_in_place(g, shared, sum(g, routed, {T, h}, "experts.sum"));
  out.output.shape = x.shape;
  return out;
}

}  // namespace oomplan
