#include "layers/gptq.hpp"

#include <utility>

namespace oomplan::gptq {

using namespace ops;

std::vector<PackedTensor> tensors(const PackedOptions& o, std::int64_t in, std::int64_t out) {
  const std::int64_t groups = o.group > 0 ? ceil_div(in, o.group) : 1;
  return {{"", in / 32 * o.bits * out * 4, DType::int8, PackedLeaf::weight},
          {"qzeros", groups * (out / 32 * o.bits) * 4, DType::int8, PackedLeaf::weight},
          {"scales", groups * out, DType::fp16},
          {"g_idx", in, DType::int32}};
}

namespace {

/// dequant248
Tensor unpacked(Eager& g, int weight, const std::string& name) {
  return g.make(name + ".unpacked", g.leaves[static_cast<std::size_t>(weight)].unpacked, DType::fp16, Category::temporaries);
}

}  // namespace

Tensor linear(Eager& g, const Tensor& x, int weight, int bias, Dim rows, Shape out_shape, const std::string& name) {
  Tensor out;
  {
    const Tensor matrix = unpacked(g, weight, name);
    out = g.make(name, {rows, out_shape.back()}, x.dtype);
  }
  out.shape = std::move(out_shape);
  const Shape x_shape = x.shape;
  g.record(out, "QuantLinearFunctionBackward", {&x}, [&g, weight, rows, x_shape, name](Gradients in) {
    const Tensor matrix = unpacked(g, weight, name + ".backward");
    Tensor for_x = gradient(g, "mm_backward", {rows, x_shape.back()}, in[0].dtype);
    for_x.shape = x_shape;
    return Gradients{for_x};
  });
  if (bias < 0) return out;
  return add(g, out, g.leaf(bias), name + ".with_bias");
}

Tensor low_rank(Eager& g, Tensor result, const Tensor& given, const Leaf& base, Dim rows, const std::string& name) {
  const int in = base.low_rank_in, out = base.low_rank_out;
  const Shape first = g.leaves[static_cast<std::size_t>(in)].shape;
  const DType back = result.dtype;
  const Tensor x = g.autocast ? given : to(g, given, g.leaves[static_cast<std::size_t>(in)].dtype, name + ".lora_input");
  Tensor low;
  {
    Tensor dropped = g.low_rank_dropout ? dropout(g, x, name + ".lora_dropout") : x;
    low = ops::linear(g, std::move(dropped), in, -1, rows, with_last(x.shape, first[0]), name + ".lora_A");
  }
  Tensor output = ops::linear(g, std::move(low), out, -1, rows, result.shape, name + ".lora_B");
  if (!g.autocast) output = to(g, output, back, name + ".lora_cast");
  Tensor scaled = scale(g, output, name + ".lora_scaled");
  output = std::move(scaled);
  // a bias has made a tensor of its own of the view
  const bool view = !result.grad_fn || result.grad_fn->name == "QuantLinearFunctionBackward";
  if (!view) return add_in_place(g, result, output);
  Tensor sum = result.alias(result.shape);
  g.record(sum, "CopySlices", {&result, &output}, [&g](Gradients given_gradient) {
    const Shape& shape = given_gradient[0].shape;
    Tensor whole = gradient(g, "copy_slices.base", shape, given_gradient[0].dtype);
    Tensor part = gradient(g, "copy_slices.part", shape, given_gradient[0].dtype);
    return Gradients{whole, part};
  });
  return sum;
}

}  // namespace oomplan::gptq
