#include "layers/te_fp8.hpp"

#include "layers/ops.hpp"
#include "layers/te_fp8_tensors.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B;

Shape of_half(const TeOptions& o, Dim width) { return {o.whole(), B, width}; }
bool gathers_rows(const TeOptions& o) { return o.sequence_parallel && o.tensor > 1; }
/// A column-parallel layer's whole input, of which `local` is this rank's part.
Shape gathered_shape(const Shape& local, const TeOptions& o) { return gathers_rows(o) ? of_half(o, local.back()) : local; }

Quantised of_gradient(Eager& g, const Shape& shape, Needs needs, const TeOptions& o, const std::string& name) {
  return quantised(g, shape, needs, o, name, Category::temporaries);
}

/// A matrix's gradient where it is no part of the product.
Tensor matrix_gradient(Eager& g, std::int64_t out, Dim in, const TeOptions& o, const std::string& name) {
  return o.fused_gradients ? Tensor() : gradient(g, (name + ".weight_gradient").c_str(), {Dim(out), in}, DType::bf16);
}

/// What blocks of 128 are gathered into before their order is put right: the scales of the rows, the numbers along the columns.
struct Interleaved {
  Tensor scales, columns;
};
Interleaved interleaved(Eager& g, const Shape& whole, Needs needs, const TeOptions& o, const std::string& name) {
  Interleaved out;
  if (o.fp8 != Fp8Recipe::blockwise) return out;
  const Shape scales = with_last(whole, Dim(ceil_div(whole.back().coefficient, 128) * 4));
  if (needs != Needs::columns) out.scales = g.make(name + ".interleaved_scales", scales, DType::fp8, Category::communication);
  if (needs != Needs::rows) out.columns = g.make(name + ".interleaved", whole, DType::fp8, Category::communication);
  return out;
}

/// A product of a factor with the matrix [out, in]: scales are put in order beside its result.
void order_for_product(Eager& g, const Shape& factor, bool fresh, std::int64_t out, Dim in, const TeOptions& o,
                       const std::string& name) {
  const Tensor of_matrix = ordered_scales(g, {Dim(out), in}, false, o, name + ".weight");
  const Tensor of_factor = ordered_scales(g, factor, fresh, o, name + ".factor");
}
/// The product for the matrix's gradient.
void order_for_gradient(Eager& g, const Shape& input, bool fresh_input, const Shape& grad, bool fresh_grad, const TeOptions& o,
                        const std::string& name) {
  const Tensor of_input = ordered_scales(g, input, fresh_input, o, name + ".input");
  const Tensor of_gradient = ordered_scales(g, grad, fresh_grad, o, name + ".gradient");
}

/// What the norm gives, rounded to 8 bits behind the kernel or by it.
struct QuantisedNorm {
  Quantised output;
  Tensor statistics, mean;
};
QuantisedNorm quantised_norm(Eager& g, const Tensor& x, NormKind kind, const TeOptions& o, const std::string& name) {
  QuantisedNorm out;
  const Shape rows{x.shape[0], B, Dim(1)};
  if (kind == NormKind::layer || kind == NormKind::layer_no_bias) out.mean = g.make(name + ".mu", rows, DType::fp32);
  out.statistics = g.make(name + ".rsigma", rows, DType::fp32);
  // with one scale for a tensor what is gathered are the rows: transposed copies cannot be
  const bool rows_alone = !g.grad_enabled || (gathers_rows(o) && !scaled_in_blocks(o));
  out.output = quantised(g, x.shape, rows_alone ? Needs::rows : Needs::both, o, name + ".output");
  if (o.fp8 != Fp8Recipe::delayed) (void)g.make(name + ".output", x.shape, x.dtype, Category::temporaries);
  return out;
}

/// Of a column-parallel layer's input what backward wants.
KeptQuantised keep_column_input(Eager& g, const Quantised& input, const TeOptions& o) {
  return gathers_rows(o) && !scaled_in_blocks(o) ? keep_rows(g, input) : keep_columns(g, input);
}

Tensor column_product(Eager& g, const Quantised& input, const Tensor& x, std::int64_t out, const TeOptions& o,
                      const std::string& name) {
  const Shape whole = gathered_shape(x.shape, o);
  Quantised total;
  if (gathers_rows(o)) {
    total = quantised(g, whole, Needs::rows, o, name + ".input_gathered", Category::temporaries);
    const Interleaved before = interleaved(g, whole, Needs::rows, o, name + ".input_gathered");
  } else {
    total = input;
  }
  Tensor y = g.make(name, with_last(whole, Dim(out)), x.dtype);
  order_for_product(g, whole, !gathers_rows(o), out, x.shape.back(), o, name);
  return y;
}

/// What is there when the backward pass of a column-parallel layer is through; the gradient of the product's (local) input is the
/// last of them.
struct ColumnGradients {
  Quantised incoming;
  Tensor product, result, weight;
};
/// `release`: frees what was kept of the input, when the weight has its gradient.
ColumnGradients quantised_column_backward(Eager& g, const Tensor& grad, const Shape& input, bool keeps_original, std::int64_t out,
                                          const TeOptions& o, const std::string& name, const std::function<void()>& release) {
  ColumnGradients r;
  const Shape whole = gathered_shape(input, o);
  const bool blocks = scaled_in_blocks(o), gathers = gathers_rows(o);
  r.incoming = of_gradient(g, grad.shape, Needs::both, o, name + ".gradient");
  Quantised again, total;
  if (keeps_original) {
    const Needs needs = blocks ? Needs::columns : gathers ? Needs::rows : Needs::both;
    again = of_gradient(g, input, needs, o, name + ".input");
  }
  Interleaved before;
  if (gathers) {
    const Needs needs = blocks ? Needs::columns : Needs::rows;
    total = quantised(g, whole, needs, o, name + ".input_gathered", Category::temporaries);
    before = interleaved(g, whole, needs, o, name + ".input_gathered");
  }
  r.product = gradient(g, (name + "_backward").c_str(), whole, DType::bf16);
  order_for_product(g, grad.shape, true, out, input.back(), o, name + "_backward");
  if (gathers) {
    r.result = gradient(g, (name + "_backward.scattered").c_str(), input, DType::bf16);
    before = {};
    if (!blocks && o.fp8_transposes) total.columns = g.make(name + ".input_transposed", whole, DType::fp8, Category::temporaries);
  } else {
    r.result = r.product.alias(r.product.shape);
  }
  order_for_gradient(g, whole, !gathers, grad.shape, true, o, name);
  r.weight = matrix_gradient(g, out, input.back(), o, name);
  release();
  return r;
}

}  // namespace

Tensor te_fp8_norm_column_linear(Eager& g, const Tensor& x, NormKind kind, std::int64_t out, const TeOptions& o,
                                 const std::string& name) {
  QuantisedNorm norm = quantised_norm(g, x, kind, o, name + ".norm");
  Tensor y = column_product(g, norm.output, x, out, o, name);
  if (!g.will_record({&x})) return y;
  Saved input = g.save(x), statistics = g.save(norm.statistics), mean = norm.mean ? g.save(norm.mean) : Saved();
  KeptQuantised normed = keep_column_input(g, norm.output, o);
  g.record(y, "LayerNormLinear", {&x}, [&g, input, normed, statistics, mean, out, o, name](Gradients in) {
    const Tensor& before = input.get();
    (void)statistics.get();
    (void)mean.get();
    (void)normed.data();
    const ColumnGradients r = quantised_column_backward(g, in[0], before.shape, false, out, o, name, [&] { clear(g, normed); });
    Gradients grads{gradient(g, (name + ".norm_backward").c_str(), before.shape, before.dtype)};
    const Tensor of_scale = gradient(g, (name + ".norm.weight_gradient").c_str(), {before.shape.back()}, DType::bf16);
    return grads;
  });
  return y;
}

Tensor te_fp8_column_linear(Eager& g, const Tensor& x, std::int64_t out, bool keeps_original, const TeOptions& o,
                            const std::string& name) {
  const bool rows_alone = keeps_original || !g.grad_enabled || (gathers_rows(o) && !scaled_in_blocks(o));
  const Quantised input = quantised(g, x.shape, rows_alone ? Needs::rows : Needs::both, o, name + ".input");
  Tensor y = column_product(g, input, x, out, o, name);
  if (!g.will_record({&x})) return y;
  const Saved original = keeps_original ? g.save(x) : Saved();
  const KeptQuantised kept = keeps_original ? KeptQuantised() : keep_column_input(g, input, o);
  g.record(y, "TELinear", {&x}, [&g, original, kept, keeps_original, shape = x.shape, out, o, name](Gradients in) {
    if (keeps_original)
      (void)original.get();
    else
      (void)kept.data();
    ColumnGradients r = quantised_column_backward(g, in[0], shape, keeps_original, out, o, name, [] {});
    return Gradients{std::move(r.result)};
  });
  return y;
}

Tensor te_fp8_row_linear(Eager& g, const Tensor& x, std::int64_t out, bool keeps_original, const TeOptions& o,
                         const std::string& name) {
  const Shape local{gathers_rows(o) ? axis::S : x.shape[0], B, Dim(out)};
  const Needs needs = keeps_original || !g.grad_enabled ? Needs::rows : Needs::both;
  const Quantised input = quantised(g, x.shape, needs, o, name + ".input");
  Tensor y;
  {
    Tensor product = g.make(gathers_rows(o) ? name + ".partial" : name, {x.shape[0], B, Dim(out)}, x.dtype);
    order_for_product(g, x.shape, true, out, x.shape.back(), o, name);
    y = gathers_rows(o) ? g.make(name, local, x.dtype) : std::move(product);
  }
  if (!g.will_record({&x})) return y;
  const Saved original = keeps_original ? g.save(x) : Saved();
  const KeptQuantised kept = keeps_original ? KeptQuantised() : keep_columns(g, input);
  g.record(y, "TELinear", {&x}, [&g, original, kept, keeps_original, shape = x.shape, out, o, name](Gradients in) {
    if (keeps_original)
      (void)original.get();
    else
      (void)kept.data();
    const bool blocks = scaled_in_blocks(o), gathers = gathers_rows(o);
    const Shape whole = of_half(o, in[0].shape.back());
    Quantised part;
    if (gathers) part = of_gradient(g, in[0].shape, blocks ? Needs::both : Needs::rows, o, name + ".gradient");
    const Quantised incoming = of_gradient(g, whole, Needs::both, o, name + ".gradient_gathered");
    if (gathers) const Interleaved before = interleaved(g, whole, Needs::both, o, name + ".gradient_gathered");
    part = {};
    Quantised again;
    if (keeps_original) again = of_gradient(g, shape, blocks ? Needs::columns : Needs::both, o, name + ".input");
    Tensor product = gradient(g, (name + "_backward").c_str(), shape, DType::bf16);
    order_for_product(g, whole, !gathers, out, shape.back(), o, name + "_backward");
    order_for_gradient(g, shape, true, whole, !gathers, o, name);
    const Tensor weight = matrix_gradient(g, out, shape.back(), o, name);
    return Gradients{std::move(product)};
  });
  return y;
}

Tensor te_fp8_grouped_linear(Eager& g, const Tensor& x, const Shape& shape, const GroupedMatrices& m, bool keeps_original,
                             const TeOptions& o, const std::string& name) {
  const Needs needs = keeps_original || !g.grad_enabled ? Needs::rows : Needs::both;
  const Quantised input = quantised_together(g, x.shape, m.count, needs, o, name + ".input");
  Tensor y = g.make(name, shape, DType::bf16);
  const auto order = [&g, m, o, name](const Shape& factor) {
    const Tensor of_matrices = ordered_scales(g, {Dim(m.count * m.out), Dim(m.in)}, false, o, name + ".weight");
    const Tensor of_factor = ordered_scales(g, factor, true, o, name + ".factor");
  };
  order(x.shape);
  if (!g.will_record({&x})) return y;
  const Saved original = keeps_original ? g.save(x) : Saved();
  const KeptQuantised kept = keeps_original ? KeptQuantised() : keep_columns(g, input);
  g.record(y, "GroupedLinear", {&x}, [&g, original, kept, keeps_original, order, before = x.shape, m, o, name](Gradients in) {
    if (keeps_original)
      (void)original.get();
    else
      (void)kept.data();
    const Quantised incoming =
        quantised_together(g, in[0].shape, m.count, Needs::both, o, name + ".gradient", Category::temporaries);
    Tensor result = gradient(g, (name + "_backward").c_str(), before, DType::bf16);
    order(in[0].shape);
    Tensor weights;
    if (m.fresh_gradients || !o.fused_gradients)
      weights = gradient(g, (name + ".weight_gradients").c_str(), {Dim(m.count), Dim(m.out), Dim(m.in)}, DType::bf16);
    Quantised again;
    if (keeps_original)
      again = quantised_together(g, before, m.count, scaled_in_blocks(o) ? Needs::columns : Needs::both, o, name + ".input",
                                 Category::temporaries);
    order_for_gradient(g, before, true, in[0].shape, true, o, name);
    return Gradients{std::move(result)};
  });
  return y;
}

}  // namespace oomplan
