#include "layers/int8.hpp"

#include <algorithm>
#include <utility>

namespace oomplan::int8 {

using namespace ops;

namespace {

/// The input in 8 bits, a number a row beside it, and its columns with outliers as they were.
struct Rounded {
  Tensor columns, scales, outliers;
};

/// functional.int8_vectorwise_quant: the fp16 copy and the mask of outliers are there until it returns; their magnitudes go when
/// the mask is made.
Rounded rounded(Eager& g, const Tensor& x, Dim rows, const std::string& name) {
  const Shape flat{rows, x.shape.back()};
  const Tensor half = to(g, x, DType::fp16, name + ".input_fp16");
  Rounded out;
  out.scales = g.make(name + ".SCA", {rows}, DType::fp32, Category::temporaries);
  out.columns = g.make(name + ".CA", flat, DType::int8, Category::temporaries);
  Tensor magnitudes = g.make(name + ".magnitudes", flat, DType::fp16, Category::temporaries);
  const Tensor mask = g.make(name + ".outliers", flat, DType::int8, Category::temporaries);
  magnitudes.reset();
  return out;
}

/// The columns of the matrix that meet outliers, unpacked.
Tensor met_columns(Eager& g, const Leaf& leaf, Dim columns, DType wanted, const std::string& name) {
  const Shape shape{leaf.unpacked[0], columns};
  const Tensor taken = g.make(name + ".taken", shape, DType::int8, Category::temporaries);
  Tensor whole = g.make(name + ".subB", shape, DType::fp32, Category::temporaries);
  return to(g, std::move(whole), wanted, name + ".subB_cast");
}

/// output.addmm(subA, subB), of which autocast casts all three.
Tensor with_outliers(Eager& g, Tensor product, const Tensor& outliers, const Tensor& met, const std::string& name) {
  const DType dtype = g.autocast ? DType::bf16 : product.dtype;
  const Tensor second = to(g, met, dtype, name + ".subB_bf16"), first = to(g, outliers, dtype, name + ".subA_bf16");
  const Tensor sum = to(g, product, dtype, name + ".product_bf16");
  return g.make(name, product.shape, dtype);
}

/// int8_mixed_scaled_mm. A bias is added to the fp16 product in place.
Tensor product(Eager& g, const Tensor& x, const Rounded& in, const Tensor& met, Dim rows, Dim width, const std::string& name) {
  const Shape shape{rows, width};
  Tensor counted = g.make(name + ".int32", shape, DType::int32, Category::temporaries);
  Tensor out;
  {
    Tensor half = g.make(x.dtype == DType::fp16 ? name : name + ".fp16", shape, DType::fp16);
    out = to(g, std::move(half), x.dtype, name);
  }
  counted.reset();
  return in.outliers ? with_outliers(g, std::move(out), in.outliers, met, name) : out;
}

/// MatMul8bitLt.forward: what its ctx keeps comes back in `kept`.
Tensor forward(Eager& g, const Tensor& x, const Leaf& leaf, Dim rows, const std::string& name, std::vector<Tensor>& kept) {
  const Dim width = leaf.unpacked[0];
  Rounded in = rounded(g, x, rows, name);
  Tensor met;
  if (const std::int64_t columns = std::min(g.packed.outliers, x.shape.back().coefficient); columns > 0) {
    in.outliers = g.make(name + ".subA", {rows, columns}, x.dtype);
    met = met_columns(g, leaf, columns, x.dtype, name);
    kept.push_back(in.outliers);
  }
  kept.push_back(x.alias(x.shape));
  return product(g, x, in, met, rows, width, name);
}

}  // namespace

Tensor linear(Eager& g, const Tensor& x, int weight, int /*bias*/, Dim rows, Shape out_shape, const std::string& name) {
  std::vector<Tensor> kept;
  const bool grad = std::exchange(g.grad_enabled, false);  // inside of a function's forward
  Tensor out = forward(g, x, g.leaves[static_cast<std::size_t>(weight)], rows, name, kept);
  g.grad_enabled = grad;
  out.shape = std::move(out_shape);
  const Shape x_shape = x.shape;
  const DType dtype = x.dtype;
  const bool recorded = g.record(out, "MatMul8bitLtBackward", {&x}, [&g, weight, rows, x_shape, dtype, name](Gradients in) {
    const Tensor whole =
        g.make(name + ".backward.dequantised", g.leaves[static_cast<std::size_t>(weight)].unpacked, dtype, Category::temporaries);
    const Tensor given = to(g, in[0], dtype, name + ".backward.cast");
    Tensor for_x = gradient(g, "mm_backward", {rows, x_shape.back()}, dtype);
    for_x.shape = x_shape;
    return Gradients{for_x};
  });
  if (recorded) out.grad_fn->attributes = std::move(kept);
  return out;
}

}  // namespace oomplan::int8
