#include "layers/mlp.hpp"

#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::T;

Shape rows_by(Shape rows, Dim width) {
  rows.push_back(width);
  return rows;
}

/// Phi-3, GLM-4: `up_states` names the fused product, then its half, then the product with the activation.
Tensor fused_product(Eager& g, const Tensor& x, const Shape& rows, Dim width, const GatedLeaves& w, const std::string& name) {
  Tensor up = linear(g, x, w.gate_up, -1, T, rows_by(rows, Dim(2) * width), name + "gate_up");
  Halves halves = chunk(g, up, rows_by(rows, width));
  Tensor gate = std::move(halves.first);
  up = std::move(halves.second);
  Tensor active = activation(g, gate, name + "act");
  Tensor product = mul(g, up, std::move(active), name + "product");
  up.reset();
  return product;
}

Tensor product(Eager& g, const Tensor& x, const Shape& rows, Dim width, const GatedLeaves& w, const std::string& name) {
  Tensor gate = linear(g, x, w.gate, w.gate_bias, T, rows_by(rows, width), name + "gate");
  Tensor active = activation(g, std::move(gate), name + "act");
  Tensor up = linear(g, x, w.up, w.up_bias, T, rows_by(rows, width), name + "up");
  return mul(g, std::move(active), std::move(up), name + "product");
}

}  // namespace

Halves chunk(Eager& g, const Tensor& x, const Shape& half) {
  Halves out{x.alias(half), x.alias(half)};
  const Shape whole = x.shape;
  Tensor pair = x.alias(whole);
  const bool recorded = g.record(
      pair, "SplitBackward0", {&x},
      [&g, whole](Gradients in) {
        const DType dtype = in[0] ? in[0].dtype : in[1].dtype;
        return Gradients{g.make("split_backward", whole, dtype, Category::temporaries)};
      },
      2);
  if (recorded) {
    out.first.grad_fn = out.second.grad_fn = pair.grad_fn;
    out.first.output = 0;
    out.second.output = 1;
  }
  return out;
}

Tensor gated_mlp(Eager& g, const Tensor& x, Shape rows, Dim hidden, Dim width, const GatedLeaves& w, const std::string& name) {
  Tensor wide = w.gate_up >= 0 ? fused_product(g, x, rows, width, w, name) : product(g, x, rows, width, w, name);
  return linear(g, std::move(wide), w.down, w.down_bias, T, rows_by(std::move(rows), hidden), name + "down");
}

}  // namespace oomplan
