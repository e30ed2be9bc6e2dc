#include "layers/sparse_mixer.hpp"

#include <utility>

#include "layers/ops.hpp"
#include "layers/ops_state.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::T;

/// x.max(dim=-1): saves the indices.
TopK highest(Eager& g, const Tensor& x, const std::string& name) { return topk(g, x, {T, Dim(1)}, name); }

/// torch.scatter(x, -1, index, number): saves the index.
Tensor scatter_number(Eager& g, const Tensor& x, const Tensor& index, const std::string& name) {
  const bool recorded = g.will_record({&x});
  Saved saved = recorded ? g.save(index) : Saved();
  Tensor out = g.make(name, x.shape, x.dtype);
  if (!recorded) return out;
  g.record(out, "ScatterBackward1", {&x}, [&g, saved](Gradients in) {
    (void)saved.get();
    return Gradients{gradient(g, "scatter_backward", in[0].shape, in[0].dtype)};
  });
  return out;
}

/// PhimoeMultiplier: a gradient for the scores alone, whatever its other arguments' graph is.
Tensor multiply(Eager& g, const Tensor& scores, const Tensor& chosen, const Tensor& index, const Tensor& gates,
                const std::string& name) {
  const bool recorded = g.will_record({&scores});
  Tensor out = g.make(name, chosen.shape, chosen.dtype);
  if (!recorded) return out;
  Saved saved_chosen = g.save(chosen), saved_index = g.save(index), saved_gates = g.save(gates);
  g.record(out, "PhimoeMultiplierBackward", {&scores, &chosen, &gates}, [=, &g](Gradients in) {
    const Tensor &values = saved_chosen.get(), &all = saved_gates.get();
    (void)saved_index.get();
    Tensor weighted = gradient(g, "multiplier_backward.values", values.shape, in[0].dtype);
    Gradients grads(3);
    {
      Tensor negated = gradient(g, "multiplier_backward.negated", values.shape, in[0].dtype);
      grads[0] = gradient(g, "multiplier_backward", all.shape, in[0].dtype);
    }
    return grads;
  });
  return out;
}

/// What one of both draws leaves as names of the function.
struct Draw {
  Tensor threshold, index_of_highest, factor, refused, gates, index, chosen, best, mask_for_one, weight;
};

/// `from`: the scores whose expert is drawn; the weight's gradient goes to `scores`.
void draw(Eager& g, const Tensor& scores, const Tensor& from, Draw& out, const std::string& name) {
  const Shape column{T, Dim(1)}, all = scores.shape;
  const DType dtype = scores.dtype;
  {
    const bool grad = std::exchange(g.grad_enabled, false);
    TopK top = highest(g, from, name + ".threshold");
    out.threshold = std::move(top.values);
    out.index_of_highest = std::move(top.indices);
    {
      Tensor absolute = g.make(name + ".absolute", all, dtype);
      out.factor = g.make(name + ".factor", all, dtype);
    }
    {
      Tensor distance = g.make(name + ".distance", all, dtype), relative = g.make(name + ".relative", all, dtype);
      distance.reset();
      out.refused = g.make(name + ".refused", all, DType::boolean);
    }
    out.threshold = out.refused;
    g.grad_enabled = grad;
  }
  out.gates = masked_fill(g, from, out.refused, name + ".masked");
  {
    Tensor noise = g.make(name + ".noise", all, dtype), logarithm = g.make(name + ".log_noise", all, dtype);
    noise.reset();
    Tensor noisy = sub(g, out.gates, std::move(logarithm), name + ".noisy");
    TopK drawn = topk(g, noisy, {T}, name + ".drawn");  // max(dim=-1)[1].unsqueeze(-1)
    out.index = view(std::move(drawn.indices), column);
  }
  Tensor gates = softmax(g, out.gates, dtype, name + ".gates");
  out.gates = std::move(gates);
  out.chosen = gather(g, out.gates, out.index, column, name + ".chosen");
  {
    TopK top = highest(g, out.gates, name + ".best");
    out.best = std::move(top.values);
    out.index_of_highest = std::move(top.indices);
  }
  out.mask_for_one = g.make(name + ".mask_for_one", column, dtype);
  out.weight = multiply(g, scores, out.chosen, out.index, out.gates, name + ".weight");
}

}  // namespace

Routing sparse_mixer(Eager& g, const FeedForward& ff, const Tensor& x, int weight) {
  Routing out;
  out.logits = linear(g, x, weight, -1, T, {T, Dim(ff.experts)}, "router.logits");
  Draw first, second;
  draw(g, out.logits, out.logits, first, "router.first");
  const Tensor masked = scatter_number(g, out.logits, first.index, "router.masked_scores");
  draw(g, out.logits, masked, second, "router.second");
  out.weights = cat(g, {first.weight, second.weight}, {T, Dim(2)}, "router.weights");
  out.indices = g.make("router.indices", {T, Dim(2)}, DType::int64);
  return out;
}

}  // namespace oomplan
