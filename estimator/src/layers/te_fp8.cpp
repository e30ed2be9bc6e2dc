#include "layers/te_fp8.hpp"

#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B;

Shape of_half(const TeOptions& o, Dim width) { return {o.whole(), B, width}; }
bool gathers_rows(const TeOptions& o) { return o.sequence_parallel && o.tensor > 1; }

/// A tensor in 8 bits: as its rows lie, and transposed.
struct Quantised {
  Tensor rows, columns, scale;
};
enum class Needs : std::uint8_t { rows, columns, both };

/// What a product needs of it. A GPU that needs no transposed copies has the rows for everything.
Quantised quantised(Eager& g, const Shape& shape, Needs needs, const TeOptions& o, const std::string& name,
                    Category category = Category::activations) {
  Quantised out;
  if (needs != Needs::columns || !o.fp8_transposes) out.rows = g.make(name + ".fp8", shape, DType::fp8, category);
  if (needs != Needs::rows && o.fp8_transposes) out.columns = g.make(name + ".fp8_transposed", shape, DType::fp8, category);
  out.scale = g.make(name + ".scale", {Dim(1)}, DType::fp32, category);
  return out;
}
Quantised of_gradient(Eager& g, const Shape& shape, Needs needs, const TeOptions& o, const std::string& name) {
  return quantised(g, shape, needs, o, name, Category::temporaries);
}

/// A matrix's gradient where it is no part of the product.
Tensor matrix_gradient(Eager& g, std::int64_t out, Dim in, const TeOptions& o, const std::string& name) {
  return o.fused_gradients ? Tensor() : gradient(g, (name + ".weight_gradient").c_str(), {Dim(out), in}, DType::bf16);
}

/// What of a quantised tensor the backward pass keeps for the weight's gradient.
struct KeptInput {
  Saved data, scale;
};
KeptInput keep_columns(Eager& g, const Quantised& q) { return {g.save(q.columns ? q.columns : q.rows), g.save(q.scale)}; }
KeptInput keep_rows(Eager& g, const Quantised& q) { return {g.save(q.rows), g.save(q.scale)}; }

/// What the norm gives, rounded to 8 bits behind the kernel.
struct QuantisedNorm {
  Quantised output;
  Tensor statistics, mean;
};
QuantisedNorm quantised_norm(Eager& g, const Tensor& x, NormKind kind, const TeOptions& o, const std::string& name) {
  QuantisedNorm out;
  const Shape rows{x.shape[0], B, Dim(1)};
  if (kind == NormKind::layer || kind == NormKind::layer_no_bias) out.mean = g.make(name + ".mu", rows, DType::fp32);
  out.statistics = g.make(name + ".rsigma", rows, DType::fp32);
  // what is gathered are the rows: transposed copies cannot be
  const Needs needs = gathers_rows(o) || !g.grad_enabled ? Needs::rows : Needs::both;
  out.output = quantised(g, x.shape, needs, o, name + ".output");
  const Tensor wide = g.make(name + ".output", x.shape, x.dtype, Category::temporaries);
  return out;
}

/// Up to the gradient of the product's (local) input. The incoming gradient, the gathered input and its transposed copy go with
/// the weight's gradient.
Tensor quantised_column_backward(Eager& g, const Tensor& grad, const Tensor& input, std::int64_t out, const TeOptions& o,
                                 const std::string& name) {
  const Quantised incoming = of_gradient(g, grad.shape, Needs::both, o, name + ".gradient");
  const Shape whole = of_half(o, input.shape.back());
  const Tensor total =
      gathers_rows(o) ? g.make(name + ".input_gathered", whole, DType::fp8, Category::temporaries) : input.alias(input.shape);
  Tensor product = gradient(g, (name + "_backward").c_str(), whole, DType::bf16);
  if (!gathers_rows(o)) {
    const Tensor weight = matrix_gradient(g, out, input.shape.back(), o, name);
    return product;
  }
  Tensor scattered = gradient(g, (name + "_backward.scattered").c_str(), input.shape, DType::bf16);
  const Tensor transposed =
      o.fp8_transposes ? g.make(name + ".input_transposed", whole, DType::fp8, Category::temporaries) : Tensor();
  const Tensor weight = matrix_gradient(g, out, input.shape.back(), o, name);
  return scattered;
}

}  // namespace

Tensor te_fp8_norm_column_linear(Eager& g, const Tensor& x, NormKind kind, std::int64_t out, const TeOptions& o,
                                 const std::string& name) {
  QuantisedNorm norm = quantised_norm(g, x, kind, o, name + ".norm");
  Tensor total = gathers_rows(o) ? g.make(name + ".input_gathered", of_half(o, x.shape.back()), DType::fp8, Category::temporaries)
                                 : norm.output.rows.alias(x.shape);
  Tensor y = g.make(name, of_half(o, Dim(out)), x.dtype);
  total.reset();
  if (!g.will_record({&x})) return y;
  Saved input = g.save(x), statistics = g.save(norm.statistics), mean = norm.mean ? g.save(norm.mean) : Saved();
  KeptInput normed = gathers_rows(o) ? keep_rows(g, norm.output) : keep_columns(g, norm.output);
  g.record(y, "LayerNormLinear", {&x}, [&g, input, normed, statistics, mean, out, o, name](Gradients in) {
    const Tensor& before = input.get();
    (void)statistics.get();
    (void)mean.get();
    (void)normed.scale.get();
    Tensor grad = quantised_column_backward(g, in[0], normed.data.get(), out, o, name);
    return Gradients{gradient(g, (name + ".norm_backward").c_str(), before.shape, before.dtype)};
  });
  return y;
}

Tensor te_fp8_row_linear(Eager& g, const Tensor& x, std::int64_t out, bool keeps_original, const TeOptions& o,
                         const std::string& name) {
  const Shape local{gathers_rows(o) ? axis::S : x.shape[0], B, Dim(out)};
  const Needs needs = keeps_original || !g.grad_enabled ? Needs::rows : Needs::both;
  Quantised input = quantised(g, x.shape, needs, o, name + ".input");
  Tensor y;
  {
    Tensor product = g.make(gathers_rows(o) ? name + ".partial" : name, {x.shape[0], B, Dim(out)}, x.dtype);
    y = gathers_rows(o) ? g.make(name, local, x.dtype) : std::move(product);
  }
  if (!g.will_record({&x})) return y;
  const KeptInput kept = keeps_original ? KeptInput{g.save(x), Saved()} : keep_columns(g, input);
  g.record(y, "TELinear", {&x}, [&g, kept, keeps_original, out, o, name](Gradients in) {
    const Tensor& before = kept.data.get();
    const Shape shape = before.shape;
    Quantised part;
    if (gathers_rows(o)) part = of_gradient(g, in[0].shape, Needs::rows, o, name + ".gradient");
    const Quantised incoming = of_gradient(g, of_half(o, in[0].shape.back()), Needs::both, o, name + ".gradient_gathered");
    part = {};
    Quantised again;
    if (keeps_original) again = of_gradient(g, shape, Needs::both, o, name + ".input");
    Tensor product = gradient(g, (name + "_backward").c_str(), shape, DType::bf16);
    const Tensor weight = matrix_gradient(g, out, shape.back(), o, name);
    return Gradients{std::move(product)};
  });
  return y;
}

}  // namespace oomplan
