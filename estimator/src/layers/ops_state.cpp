#include "layers/ops_state.hpp"

#include "layers/ops.hpp"

namespace oomplan::ops {

Tensor view(Tensor x, Shape as) {
  x.shape = std::move(as);
  return x;
}

Tensor view_copied_back(Eager& g, const Tensor& x, Shape as, const std::string& name) {
  const Shape from = x.shape;
  Tensor out = x.alias(std::move(as));
  g.record(out, "ViewBackward0", {&x},
           [&g, from, name](Gradients in) { return Gradients{g.make(name, from, in[0].dtype, Category::temporaries)}; });
  return out;
}

Tensor outer(Eager& g, Tensor a, Tensor b, Shape out_shape, const std::string& name) {
  const bool recorded = g.will_record({&a, &b});
  const bool for_a = recorded && a.needs_grad(), for_b = recorded && b.needs_grad();
  Saved saved_a = for_b ? g.save(a) : Saved();
  Saved saved_b = for_a ? g.save(b) : Saved();
  const DType dtype = a.dtype == DType::fp32 ? a.dtype : b.dtype;
  Tensor out = g.make(name, std::move(out_shape), dtype);
  if (!recorded) return out;
  g.record(out, "MulBackward0", {&a, &b}, [&g, for_a, for_b, saved_a, saved_b](Gradients in) {
    Gradients grads(2);
    if (for_b) {
      (void)saved_a.get();
      grads[1] = gradient(g, "mul_backward", in[0].shape, in[0].dtype);
    }
    if (for_a) {
      (void)saved_b.get();
      grads[0] = gradient(g, "mul_backward", in[0].shape, in[0].dtype);
    }
    return grads;
  });
  return out;
}

Tensor difference(Eager& g, Tensor a, Tensor b, Shape out_shape, const std::string& name) {
  Tensor out = g.make(name, std::move(out_shape), a.dtype);
  g.record(out, "SubBackward0", {&a, &b},
           [&g](Gradients in) { return Gradients{in[0], gradient(g, "sub_backward", in[0].shape, in[0].dtype)}; });
  return out;
}

Tensor masked_fill(Eager& g, Tensor x, const Tensor& mask, const std::string& name) {
  const bool recorded = g.will_record({&x});
  Saved saved = recorded ? g.save(mask) : Saved();
  Tensor out = g.make(name, x.shape, x.dtype);
  if (!recorded) return out;
  g.record(out, "MaskedFillBackward0", {&x}, [&g, saved](Gradients in) {
    (void)saved.get();
    return Gradients{gradient(g, "masked_fill_backward", in[0].shape, in[0].dtype)};
  });
  return out;
}

/// cumsum_backward: grad.flip(dim).cumsum(dim).flip(dim)
Tensor cumsum(Eager& g, Tensor x, const std::string& name) {
  Tensor out = g.make(name, x.shape, x.dtype);
  g.record(out, "CumsumBackward0", {&x}, [&g](Gradients in) {
    Tensor flipped = gradient(g, "cumsum_backward.flipped", in[0].shape, in[0].dtype);
    Tensor summed = gradient(g, "cumsum_backward.summed", in[0].shape, in[0].dtype);
    flipped.reset();
    return Gradients{gradient(g, "cumsum_backward", in[0].shape, in[0].dtype)};
  });
  return out;
}

Tensor softplus(Eager& g, Tensor x, const std::string& name) {
  if (g.autocast) x = to(g, std::move(x), DType::fp32, name + ".input_fp32");  // on CUDA's list of what is computed in fp32
  const bool recorded = g.will_record({&x});
  Saved saved = recorded ? g.save(x) : Saved();
  Tensor out = g.make(name, x.shape, x.dtype);
  if (!recorded) return out;
  g.record(out, "SoftplusBackward0", {&x}, [&g, saved](Gradients in) {
    (void)saved.get();
    return Gradients{gradient(g, "softplus_backward", in[0].shape, in[0].dtype)};
  });
  return out;
}

Tensor pad(Eager& g, Tensor x, Shape out_shape, const std::string& name) {
  const Shape narrow = x.shape;
  Tensor out = g.make(name, std::move(out_shape), x.dtype);
  g.record(out, "ConstantPadNdBackward0", {&x},
           [&g, narrow](Gradients in) { return Gradients{gradient(g, "pad_backward", narrow, in[0].dtype)}; });
  return out;
}

Tensor repeat_interleave(Eager& g, Tensor x, Shape out_shape, const std::string& name) {
  const Shape from = x.shape;
  Tensor out = g.make(name, std::move(out_shape), x.dtype);
  g.record(out, "ExpandBackward0", {&x},
           [&g, from](Gradients in) { return Gradients{gradient(g, "repeat_interleave_backward", from, in[0].dtype)}; });
  return out;
}

Tensor conv1d_by_channel(Eager& g, Tensor x, int weight, int bias, Shape out_shape, const std::string& name) {
  Tensor w = g.leaf(weight), b = bias >= 0 ? g.leaf(bias) : Tensor();
  if (g.autocast) {
    if (b) b = g.autocast_weight(b);
    w = to(g, std::move(w), DType::bf16, name + ".weight_bf16");  // a view of the parameter: autocast keeps copies of leaves
    x = to(g, std::move(x), DType::bf16, name + ".input_bf16");
  }
  std::vector<const Tensor*> inputs{&x, &w};
  if (b) inputs.push_back(&b);
  const bool recorded = g.will_record(inputs);
  Saved saved_x = recorded ? g.save(x) : Saved();
  Saved saved_w = recorded ? g.save(w) : Saved();
  Tensor out = g.make(name, std::move(out_shape), x.dtype);
  if (!recorded) return out;
  const bool for_x = x.needs_grad(), for_w = w.needs_grad(), for_b = b && b.needs_grad();
  const Shape x_shape = x.shape, w_shape = w.shape, b_shape = b ? b.shape : Shape();
  g.record(out, "ConvolutionBackward0", inputs, [=, &g](Gradients in) {
    (void)saved_x.get();
    (void)saved_w.get();
    Gradients grads(3);
    if (for_x) grads[0] = gradient(g, "convolution_backward", x_shape, in[0].dtype);
    if (for_w) grads[1] = g.make(name + ".weight_gradient", w_shape, in[0].dtype, Category::gradients);
    if (for_b) grads[2] = g.make(name + ".bias_gradient", b_shape, in[0].dtype, Category::gradients);
    return grads;
  });
  return out;
}

/// linalg_solve_triangular_backward: the gradient of `right` is solved for; that of the matrix is its negated product with the
/// result, one triangle of it.
Tensor solve_triangular(Eager& g, Tensor matrix, Tensor right, const std::string& name) {
  const bool recorded = g.will_record({&matrix, &right});
  Saved saved_matrix = recorded ? g.save(matrix) : Saved();
  Tensor out = g.make(name, right.shape, right.dtype);
  if (!recorded) return out;
  Saved saved_out = g.save(out);
  g.record(out, "LinalgSolveTriangularBackward0", {&matrix, &right}, [&g, saved_matrix, saved_out](Gradients in) {
    const Shape square = saved_matrix.get().shape;
    Gradients grads(2);
    grads[1] = gradient(g, "solve_backward", saved_out.get().shape, in[0].dtype);
    Tensor product = gradient(g, "solve_backward.product", square, in[0].dtype);
    Tensor negated = gradient(g, "solve_backward.negated", square, in[0].dtype);
    product.reset();
    grads[0] = gradient(g, "solve_backward.triangle", square, in[0].dtype);
    return grads;
  });
  return out;
}

Tensor clamp_in_place(Eager& g, const Tensor& x, const std::string& name) {
  const bool recorded = g.will_record({&x});
  Saved before = recorded ? g.save(g.make(name + ".before", x.shape, x.dtype)) : Saved();
  Tensor out = x.alias(x.shape);
  if (!recorded) return out;
  g.record(out, "ClampBackward1", {&x}, [&g, before](Gradients in) {
    (void)before.get();
    Tensor low = gradient(g, "clamp_backward.mask", in[0].shape, DType::boolean);
    Tensor high = gradient(g, "clamp_backward.mask", in[0].shape, DType::boolean);
    return Gradients{gradient(g, "clamp_backward", in[0].shape, in[0].dtype)};
  });
  return out;
}

/// CopySlices of torch/csrc/autograd/functions/tensor.cpp copies the whole gradient, and the part of it twice: once to hand on,
/// once more as zeros where the tensor had a gradient already.
Tensor copy_into(Eager& g, const Tensor& whole, const Tensor& part, const Shape& part_shape) {
  Tensor filled = whole.alias(whole.shape);
  filled.grad_fn = whole.grad_fn;
  const bool written = whole.needs_grad();
  g.record(filled, "CopySlices", {&whole, &part}, [&g, part_shape, written](Gradients in) {
    Gradients grads(2);
    grads[0] = g.make("copy_slices_backward", in[0].shape, in[0].dtype, Category::temporaries);
    grads[1] = g.make("copy_slices_backward.part", part_shape, in[0].dtype, Category::temporaries);
    Tensor zeros = written ? g.make("copy_slices_backward.zeros", part_shape, in[0].dtype, Category::temporaries) : Tensor();
    return grads;
  });
  return filled;
}

}  // namespace oomplan::ops
