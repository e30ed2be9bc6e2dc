#include "layers/dbrx.hpp"

#include "layers/experts.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::S, axis::T;

/// torch.norm(x, p=1, dim=-1, keepdim=True): saves its input and the result.
Tensor norm_of_rows(Eager& g, const Tensor& x, const std::string& name) {
  const bool recorded = g.will_record({&x});
  Saved saved_x = recorded ? g.save(x) : Saved();
  Tensor out = g.make(name, with_last(x.shape, Dim(1)), x.dtype);
  if (!recorded) return out;
  Saved saved_out = g.save(out);
  g.record(out, "LinalgVectorNormBackward0", {&x}, [&g, saved_x, saved_out](Gradients in) {
    (void)saved_out.get();
    const Shape shape = saved_x.get().shape;
    Tensor sign = gradient(g, "norm_backward.sign", shape, in[0].dtype);
    return Gradients{gradient(g, "norm_backward", shape, in[0].dtype)};
  });
  return out;
}

struct Routed {
  Tensor logits, weights, indices;
};

Routed route_dbrx(Eager& g, const FeedForward& ff, const Tensor& rows, int weight) {
  const Shape top{T, Dim(ff.experts_per_token)};
  Routed out;
  out.logits = linear(g, rows, weight, -1, T, {T, Dim(ff.experts)}, "router.logits");
  Tensor probabilities = softmax(g, out.logits, out.logits.dtype, "router.probabilities");
  TopK chosen = topk(g, probabilities, top, "router.top");
  out.indices = std::move(chosen.indices);
  Tensor total = norm_of_rows(g, chosen.values, "router.norm");
  out.weights = div(g, chosen.values, std::move(total), "router.weights");
  return out;
}

/// stack.view(experts, width, hidden)[expert]: what comes back through a view is not added to in place.
Tensor of_expert(Eager& g, const Tensor& stack, const Shape& matrix) {
  Tensor viewed = stack.alias(stack.shape);
  g.record(viewed, "ViewBackward0", {&stack}, [](const Gradients& in) {
    Tensor whole = in[0];
    whole.transposed = true;
    return Gradients{whole};
  });
  return slice(g, viewed, matrix);
}

/// Names of the loop's body outlive their turn.
struct Turn {
  Tensor places, up, gate, down, states;
};

/// DbrxExpertGLU.forward of an expert's rows.
Tensor glu(Eager& g, const Turn& n, Tensor x, Dim rows, Dim width, Dim hidden) {
  Tensor gate = linear_by(g, x, n.gate, rows, {rows, width}, "expert.gate");
  const Tensor up = linear_by(g, x, n.up, rows, {rows, width}, "expert.up");
  Tensor active = activation(g, gate, "expert.act");
  gate = std::move(active);
  const Tensor product = mul(g, gate, up, "expert.product");
  return linear_by(g, product, n.down, rows, {rows, hidden}, "expert.down");
}

}  // namespace

Tensor run_dbrx_experts(Eager& g, const FeedForward& ff, Dim hidden, const Tensor& x, const LayerLeaves& w, std::int64_t tokens) {
  Tensor rows_TH = x.alias({T, hidden});
  g.record(rows_TH, "ViewBackward0", {&x}, [shape = x.shape](const Gradients& in) { return Gradients{in[0].alias(shape)}; });
  const Routed routed = route_dbrx(g, ff, rows_TH, w.router);
  Tensor sum = g.make("experts.sum", {T, hidden}, x.dtype);
  const Tensor mask = g.make("experts.mask", {T, Dim(ff.experts_per_token), Dim(ff.experts + 1)}, DType::int64);
  const Tensor hit = g.make("experts.hit", {Dim(ff.experts), Dim(1)}, DType::int64);
  const Tensor gate = g.leaf(w.gate), up = g.leaf(w.up), down = g.leaf(w.down);
  const Shape matrix{Dim(ff.expert_width), hidden};
  const Spread spread(ff, tokens);
  Turn n;
  for (std::int64_t e = 0; e < spread.hit; ++e) {
    const Dim rows = spread.of(e);
    Tensor places = g.make("expert.positions", {Dim(2), rows}, DType::int64);
    n.places = std::move(places);
    n.up = of_expert(g, up, matrix);
    n.gate = of_expert(g, gate, matrix);
    n.down = of_expert(g, down, matrix);
    Tensor states;
    {
      Tensor given = index_rows(g, rows_TH, n.places, {rows, hidden}, "expert.input");
      states = glu(g, n, std::move(given), rows, ff.expert_width, hidden);
    }
    n.states = std::move(states);
    Tensor share = index_rows(g, routed.weights, n.places, {rows, Dim(1)}, "expert.share");
    Tensor weighted = mul(g, n.states, std::move(share), "expert.weighted");
    n.states = std::move(weighted);
    sum = index_add(g, sum, n.places, n.states);
  }
  sum.shape = {B, S, hidden};
  return sum;
}

}  // namespace oomplan
