// batched_mm_experts_forward: every routed row gets a copy of its expert's matrices.
#include "layers/experts.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::T;

/// hidden_states.repeat_interleave(top_k, dim=0): a copy, whose gradient is summed over the k.
Tensor repeat_rows(Eager& g, const Tensor& x, Dim k, Dim hidden) {
  Tensor out = g.make("experts.input", {T, k, hidden}, x.dtype);
  g.record(out, "ExpandBackward0", {&x},
           [&g, shape = x.shape](const Gradients& in) { return Gradients{gradient(g, "repeat_backward", shape, in[0].dtype)}; });
  return out;
}

/// out.add_(x) where out is a view of the product: CopySlices (torch/csrc/autograd/functions/tensor.cpp) copies the gradient, and
/// once more what it hands on.
Tensor add_to_view(Eager& g, const Tensor& out, const Tensor& x) {
  Tensor sum = out.alias(out.shape);
  g.record(sum, "CopySlices", {&out, &x}, [&g](const Gradients& in) {
    Tensor whole = gradient(g, "copy_slices", in[0].shape, in[0].dtype);
    return Gradients{std::move(whole), gradient(g, "copy_slices.clone", in[0].shape, in[0].dtype)};
  });
  return sum;
}

/// _batched_linear: bmm is an operator that autocast casts for, each time anew and the last argument first. `in`: shape of
/// the rows as they are multiplied, with an axis of one.
Tensor batched_linear(Eager& g, const Tensor& rows, Tensor stack, const Tensor& biases, const Shape& in, Shape out,
                      bool input_first, const std::string& name) {
  Tensor x = rows;
  if (g.autocast) {
    x.shape = in;
    const auto cast_x = [&] { x = to(g, std::move(x), DType::bf16, name + ".input_bf16"); };
    if (!input_first) cast_x();
    stack = to(g, std::move(stack), DType::bf16, name + ".weight_bf16");
    if (input_first) cast_x();
  }
  Tensor product = input_first ? matmul(g, std::move(x), std::move(stack), std::move(out), name)
                               : matmul(g, std::move(stack), std::move(x), std::move(out), name);
  return biases ? add_to_view(g, product, biases) : product;
}

}  // namespace

Tensor batched_experts(Eager& g, const FeedForward& ff, Dim hidden, const Tensor& x, const Routing& routing,
                       const LayerLeaves& w) {
  const Dim k = ff.experts_per_token, rows = T * k, width = ff.expert_width, both = 2 * ff.expert_width;
  const bool input_first = ff.expert_bias;  // gpt-oss stores its matrices as [in, out]
  const auto stack_of = [&](int leaf, Dim out, Dim in, const char* name) {
    const Shape shape = input_first ? Shape{rows, in, out} : Shape{rows, out, in};
    return index_rows(g, g.leaf(leaf), routing.indices, shape, name);
  };
  const auto biases_of = [&](int leaf, Dim out, const char* name) {
    return leaf < 0 ? Tensor() : index_rows(g, g.leaf(leaf), routing.indices, {rows, out}, name);
  };
  const auto of_row = [&](Dim out) { return input_first ? Shape{rows, Dim(1), out} : Shape{rows, out, Dim(1)}; };

  const Tensor selected = repeat_rows(g, x, k, hidden);
  Tensor stack = stack_of(w.experts_gate_up, both, hidden, "experts.gate_up_of_rows");
  Tensor biases = biases_of(w.experts_gate_up_bias, both, "experts.gate_up_bias");
  Tensor projected = batched_linear(g, selected, stack, biases, of_row(hidden), of_row(both), input_first, "experts.gate_up");
  Tensor next = expert_gate(g, ff, projected, {rows, width});
  projected = std::move(next);
  next = stack_of(w.experts_down, hidden, width, "experts.down_of_rows");
  stack = std::move(next);
  next = biases_of(w.experts_down_bias, hidden, "experts.down_bias");
  biases = std::move(next);
  next = batched_linear(g, projected, stack, biases, of_row(width), of_row(hidden), input_first, "experts.down");
  projected = std::move(next);
  Tensor weighted;
  {
    Tensor column = routing.weights.alias({rows, Dim(1)});
    column.grad_fn = routing.weights.grad_fn;
    column.output = routing.weights.output;
    weighted = mul(g, projected, std::move(column), "experts.weighted");
  }
  Tensor summed = sum_of_chosen(g, ff, hidden, weighted);
  return to(g, summed, x.dtype, "experts.output");
}

}  // namespace oomplan
