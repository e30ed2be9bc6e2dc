#include "layers/te.hpp"

#include <memory>
#include <utility>
#include <vector>

#include "layers/ops.hpp"
#include "layers/te_fp8.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B;

/// Shape of a tensor inside of a half: [t S or S, B, width].
Shape inside(const TeOptions& o, Dim width) { return {o.whole(), B, width}; }

/// The gradient of a weight [out, in] that is no part of the product: autograd hands it to the weight's own node.
Tensor weight_gradient(Eager& g, std::int64_t out, Dim in, const TeOptions& o, const std::string& name) {
  return o.fused_gradients ? Tensor() : gradient(g, (name + ".weight_gradient").c_str(), {Dim(out), in}, DType::bf16);
}

/// What a product is made of, with a weight whose gradient goes once it has been added up.
struct Factors {
  Factors(Eager& g, const Tensor& x, const TeOptions& o) : weight(o.fused_gradients ? Tensor() : te_weight(g)), all{&x} {
    if (weight) all.push_back(&weight);
  }
  Factors(const Factors&) = delete;
  Factors& operator=(const Factors&) = delete;
  Tensor weight;
  std::vector<const Tensor*> all;
};

struct NormResult {
  Tensor output, statistics, mean;
};
NormResult norm_kernel(Eager& g, const Tensor& x, NormKind kind, const std::string& name) {
  NormResult out;
  const Shape rows{x.shape[0], B, Dim(elements(x.shape).coefficient / elements({x.shape[0], B, x.shape.back()}).coefficient)};
  out.output = g.make(name + ".output", x.shape, x.dtype);
  if (kind == NormKind::layer || kind == NormKind::layer_no_bias) out.mean = g.make(name + ".mu", rows, DType::fp32);
  out.statistics = g.make(name + ".rsigma", rows, DType::fp32);
  return out;
}

/// Gathers x for a product under sequence parallelism; x itself otherwise.
Tensor gathered(Eager& g, const Tensor& x, const TeOptions& o, const std::string& name) {
  if (!o.sequence_parallel || o.tensor == 1) return x.alias(x.shape);
  return g.make(name, inside(o, x.shape.back()), x.dtype, Category::temporaries);
}

/// Backward of a column-parallel product: the gradients of its (local) input and of its weight.
Gradients column_backward(Eager& g, const Tensor& grad, const Tensor& input, std::int64_t out, const TeOptions& o,
                          const std::string& name) {
  (void)grad;
  Tensor total = gathered(g, input, o, name + ".input_gathered");
  Tensor product = gradient(g, (name + "_backward").c_str(), inside(o, input.shape.back()), input.dtype);
  if (o.sequence_parallel && o.tensor > 1) {
    Tensor scattered = gradient(g, (name + "_backward.scattered").c_str(), input.shape, input.dtype);
    return {std::move(scattered), weight_gradient(g, out, input.shape.back(), o, name)};
  }
  Tensor weight = weight_gradient(g, out, input.shape.back(), o, name);
  return {std::move(product), std::move(weight)};
}

}  // namespace

Tensor te_weight(Eager& g) {
  auto node = std::make_shared<Node>();
  node->name = "AccumulateGrad";
  node->sequence = kAccumulates;
  node->scope = g.scope;
  node->apply = [](Gradients) { return Gradients{}; };
  Tensor out = g.scalar(DType::bf16);
  out.grad_fn = std::move(node);
  return out;
}

Tensor te_norm(Eager& g, const Tensor& x, NormKind kind, const std::string& name) {
  NormResult r = norm_kernel(g, x, kind, name);
  if (!g.will_record({&x})) return r.output;
  Saved saved = g.save(x), statistics = g.save(r.statistics), mean = r.mean ? g.save(r.mean) : Saved();
  g.record(r.output, "TENorm", {&x}, [&g, saved, statistics, mean, name](Gradients in) {
    (void)in;
    const Tensor& input = saved.get();
    (void)statistics.get();
    (void)mean.get();
    return Gradients{gradient(g, (name + "_backward").c_str(), input.shape, input.dtype)};
  });
  return r.output;
}

Tensor te_column_linear(Eager& g, const Tensor& x, std::int64_t out, const TeOptions& o, const std::string& name,
                        bool keeps_original) {
  if (o.fp8 != Fp8Recipe::none) return te_fp8_column_linear(g, x, out, keeps_original, o, name);
  Tensor total = gathered(g, x, o, name + ".input_gathered");
  Tensor y = g.make(name, inside(o, Dim(out)), x.dtype);
  if (!g.will_record({&x})) return y;
  Saved saved = g.save(x);
  const Factors factors(g, x, o);
  g.record(y, "TELinear", factors.all,
           [&g, saved, out, o, name](Gradients in) { return column_backward(g, in[0], saved.get(), out, o, name); });
  return y;
}

Tensor te_norm_column_linear(Eager& g, const Tensor& x, NormKind kind, std::int64_t out, const TeOptions& o,
                             const std::string& name) {
  if (o.fp8 != Fp8Recipe::none) return te_fp8_norm_column_linear(g, x, kind, out, o, name);
  NormResult norm = norm_kernel(g, x, kind, name + ".norm");
  Tensor total = gathered(g, norm.output, o, name + ".input_gathered");
  Tensor y = g.make(name, inside(o, Dim(out)), x.dtype);
  total.reset();
  if (!g.will_record({&x})) return y;
  Saved input = g.save(x), normed = g.save(norm.output), statistics = g.save(norm.statistics),
        mean = norm.mean ? g.save(norm.mean) : Saved();
  const Factors factors(g, x, o);
  g.record(y, "LayerNormLinear", factors.all, [&g, input, normed, statistics, mean, out, o, name](Gradients in) {
    const Tensor& before = input.get();
    (void)statistics.get();
    (void)mean.get();
    Gradients grads = column_backward(g, in[0], normed.get(), out, o, name);
    g.clear(normed.get());  // pytorch/module/layernorm_linear.py: clear_tensor_data(ln_out), in front of the norm's kernel
    Tensor behind = std::exchange(grads[0], gradient(g, (name + ".norm_backward").c_str(), before.shape, before.dtype));
    return grads;
  });
  return y;
}

Tensor te_row_linear(Eager& g, const Tensor& x, std::int64_t out, const TeOptions& o, const std::string& name,
                     bool keeps_original) {
  if (o.fp8 != Fp8Recipe::none) return te_fp8_row_linear(g, x, out, keeps_original, o, name);
  const bool scatters = o.sequence_parallel && o.tensor > 1;
  const Shape local{scatters ? axis::S : x.shape[0], B, Dim(out)};
  Tensor y;
  {
    Tensor product = g.make(scatters ? name + ".partial" : name, {x.shape[0], B, Dim(out)}, x.dtype);
    y = scatters ? g.make(name, local, x.dtype) : std::move(product);
  }
  if (!g.will_record({&x})) return y;
  Saved saved = g.save(x);
  const Factors factors(g, x, o);
  g.record(y, "TELinear", factors.all, [&g, saved, out, o, name](Gradients in) {
    const Tensor& input = saved.get();
    Tensor whole = gathered(g, in[0], o, name + ".gradient_gathered");
    Tensor product = gradient(g, (name + "_backward").c_str(), input.shape, input.dtype);
    Tensor weight = weight_gradient(g, out, input.shape.back(), o, name);
    return Gradients{std::move(product), std::move(weight)};
  });
  return y;
}

Tensor te_duplicated_linear(Eager& g, const Tensor& x, std::int64_t out, const TeOptions& o, const std::string& name,
                            bool keeps_original) {
  if (o.fp8 != Fp8Recipe::none) {
    TeOptions alone = o;
    alone.tensor = 1;
    return te_fp8_column_linear(g, x, out, keeps_original, alone, name);
  }
  Tensor y = g.make(name, {x.shape[0], B, Dim(out)}, x.dtype);
  if (!g.will_record({&x})) return y;
  Saved saved = g.save(x);
  const Factors factors(g, x, o);
  g.record(y, "TELinear", factors.all, [&g, saved, out, o, name](Gradients) {
    const Tensor& input = saved.get();
    Tensor product = gradient(g, (name + "_backward").c_str(), input.shape, input.dtype);
    Tensor weight = weight_gradient(g, out, input.shape.back(), o, name);
    return Gradients{std::move(product), std::move(weight)};
  });
  return y;
}

Tensor te_rotary(Eager& g, const Tensor& x, const std::string& name) {
  Tensor y = g.make(name, x.shape, x.dtype);
  g.record(y, "FusedRoPE", {&x},
           [&g, name](Gradients in) { return Gradients{gradient(g, (name + "_backward").c_str(), in[0].shape, in[0].dtype)}; });
  return y;
}

Tensor te_contiguous(Eager& g, const Tensor& view, const std::string& name) {
  Tensor y = g.make(name, view.shape, view.dtype);
  g.record(y, "CloneBackward0", {&view}, [](Gradients in) { return in; });
  return y;
}

}  // namespace oomplan
