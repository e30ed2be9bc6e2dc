// Experts of Megatron-core's MoELayer: one grouped product for all of a rank, or one expert after another.
#include <numeric>

#include "layers/megatron_moe.hpp"
#include "layers/megatron_recompute.hpp"
#include "layers/ops.hpp"
#include "layers/te_fp8.hpp"

namespace oomplan {
namespace {

using namespace ops;

/// A matrix [out, in] of `count` experts as a module of Transformer Engine.
struct Matrices {
  std::int64_t out = 0, in = 0, count = 1;
  bool fresh_gradients = false;  ///< no cached tensor stands for their gradients
  bool frozen = false;           ///< they have none, and their input is not kept
  bool rounded = false;          ///< copies that are rounded to 4 bits and back stand in for them
  std::string name;
};

/// slime's Megatron (docker/patch/*/megatron.patch: _FakeInt4QuantizationSTE, TEGroupedLinear._get_weight_tensors): a copy of
/// every expert's matrix. What the function's names hold goes when it returns: the last expert's are made beside all copies.
Tensor rounded(Eager& g, const Matrices& m) {
  const Shape one{Dim(m.out), Dim(m.in)};
  const auto held = [&](const char* what, DType dtype) { return g.make(m.name + what, one, dtype, Category::temporaries); };
  const Tensor padded = held(".padded", DType::bf16);
  held(".magnitudes", DType::fp32);
  const Tensor divided = held(".divided", DType::fp32), whole = held(".whole", DType::fp32),
               clamped = held(".clamped", DType::fp32), back = held(".back", DType::fp32);
  return g.make(m.name + ".rounded", {Dim(m.count), Dim(m.out), Dim(m.in)}, DType::bf16);
}

/// TELinear or GroupedLinear over rows. `shape`: of the result.
Tensor product(Eager& g, const Tensor& x, const Shape& shape, const Matrices& m) {
  const Tensor copies = m.rounded ? rounded(g, m) : Tensor();
  Tensor y = g.make(m.name, shape, DType::bf16);
  if (!g.will_record({&x})) return y;
  const Saved kept = m.rounded ? g.save(copies) : Saved();
  g.record(y, "GroupedLinear", {&x}, [&g, saved = m.frozen ? Saved() : g.save(x), kept, m, before = x.shape](Gradients) {
    if (!m.frozen) (void)saved.get();
    if (m.rounded) (void)kept.get();
    Tensor result = gradient(g, (m.name + "_backward").c_str(), before, DType::bf16);
    const Tensor weights = m.fresh_gradients ? gradient(g, (m.name + ".weight_gradients").c_str(),
                                                        {Dim(m.count), Dim(m.out), Dim(m.in)}, DType::bf16)
                                             : Tensor();
    return Gradients{std::move(result)};
  });
  return y;
}

/// weighted_bias_swiglu_impl: the probabilities are a factor of the activation.
Tensor weighted_swiglu(Eager& g, const Tensor& inner, const Tensor& weights, const Shape& shape) {
  Tensor active = g.make("experts.activation", shape, DType::bf16);
  if (!g.will_record({&inner, &weights})) return active;
  Saved product = g.save(inner), factors = g.save(weights);
  g.record(active, "WeightedSwiGLU", {&inner, &weights}, [&g, product, factors](Gradients) {
    Gradients grads;
    grads.push_back(gradient(g, "experts.activation_backward", product.get().shape, DType::bf16));
    grads.push_back(gradient(g, "experts.probabilities_backward", factors.get().shape, factors.get().dtype));
    return grads;
  });
  return active;
}

/// Without a gate, or without the kernel, nothing is fused: the activation, times the probabilities in their format, and back.
Tensor weighted_activation(Eager& g, const RoutedSizes& s, const Tensor& inner, const Tensor& weights, const Shape& shape) {
  const std::int64_t width = shape.back().coefficient;
  Tensor active =
      s.gated ? unfused_glu(g, inner, width, s.offset, "experts.activation") : activation(g, inner, "experts.activation");
  Tensor factors = weights.alias({weights.shape[0], Dim(1)});
  factors.grad_fn = weights.grad_fn;
  factors.output = weights.output;
  Tensor weighted = mul(g, std::move(active), std::move(factors), "experts.weighted");
  return to(g, std::move(weighted), DType::bf16, "experts.weighted_cast");
}

Tensor weighted(Eager& g, const RoutedSizes& s, const Tensor& inner, const Tensor& weights, const Shape& shape) {
  return s.gated && s.fused ? weighted_swiglu(g, inner, weights, shape) : weighted_activation(g, s, inner, weights, shape);
}

/// Fp8Padding in front of the experts: copies of rows and their probabilities.
RoutedRows padded(Eager& g, const RoutedRows& in, const RoutedSizes& s) {
  return {moved_rows(g, in.tokens, {s.padded_rows, Dim(s.hidden)}, {}, DType::bf16, "experts.padded"),
          moved_rows(g, in.weights, {s.padded_rows}, {}, in.weights.dtype, "experts.padded.probabilities")};
}

/// b * p of one expert, in the format of the probabilities, which are kept.
Tensor weighted_bias(Eager& g, const Tensor& weights, const Shape& shape) {
  Tensor out = g.make("experts.weighted_bias", shape, weights.dtype);
  if (!g.will_record({&weights})) return out;
  Saved kept = g.save(weights);
  g.record(out, "MulBackward0", {&weights}, [&g, kept, shape](Gradients) {
    // both factors' products are there before autograd sums them to the factors' shapes
    Tensor of_bias = gradient(g, "experts.bias_backward", shape, kept.get().dtype);
    const Tensor product = gradient(g, "experts.weighted_bias_backward", shape, kept.get().dtype);
    of_bias.reset();
    return Gradients{gradient(g, "experts.probabilities_backward", kept.get().shape, kept.get().dtype)};
  });
  return out;
}

/// x + b * p in the wider format.
Tensor plus_weighted_bias(Eager& g, const Tensor& x, const Tensor& bias) {
  Tensor out = g.make("experts.biased", x.shape, bias.dtype);
  g.record(out, "AddBackward0", {&x, &bias}, [&g, from = x.dtype](Gradients in) {
    Tensor own = in[0].dtype == from ? in[0] : gradient(g, "experts.biased_backward", in[0].shape, from);
    return Gradients{std::move(own), in[0]};
  });
  return out;
}

/// output += b * p
Tensor adding_weighted_bias(Eager& g, const Tensor& x, const Tensor& weights) {
  const Tensor bias = weighted_bias(g, weights, x.shape);
  Tensor out = x.alias(x.shape);
  g.record(out, "AddBackward0", {&x, &bias}, [&g, wide = bias.dtype](Gradients in) {
    Tensor of_bias = in[0].dtype == wide ? in[0] : gradient(g, "experts.weighted_bias_gradient", in[0].shape, wide);
    return Gradients{in[0], std::move(of_bias)};
  });
  return out;
}

/// Rows of one of several experts, evenly. What does not divide is shared out as columns: the same bytes.
struct Share {
  Dim rows;
  std::int64_t columns = 1;
  Shape of(std::int64_t width) const { return {rows, Dim(ceil_div(width, columns))}; }
};
Share share_of(const RoutedSizes& s) {
  const std::int64_t common = std::gcd(s.rows.coefficient, s.local);
  Share out{s.rows, s.local / common};
  out.rows.coefficient /= common;
  return out;
}

/// TEGroupedMLP._apply_bias: sums of all experts, put together, in 16 bits.
Tensor apply_biases(Eager& g, const Tensor& x, const Tensor& weights, const RoutedSizes& s) {
  const Share share = share_of(s);
  const auto count = static_cast<std::size_t>(s.local);
  const std::vector<Tensor> rows = split(g, x, std::vector<Shape>(count, share.of(s.hidden)));
  const std::vector<Tensor> factors = split(g, weights, std::vector<Shape>(count, Shape{share.rows}));
  std::vector<Tensor> sums;
  for (std::size_t e = 0; e < count; ++e)
    sums.push_back(plus_weighted_bias(g, rows[e], weighted_bias(g, factors[e], rows[e].shape)));
  Tensor joined = cat(g, std::move(sums), x.shape, "experts.biased_joined");
  return to(g, std::move(joined), DType::bf16, "experts.biased_cast");
}

/// TEGroupedMLP.forward: its names hold what it has made until it returns.
Tensor grouped(Eager& g, const RoutedRows& given, const RoutedSizes& s, const ChunkOptions& o) {
  // before Transformer Engine 2.10 every expert's placeholder gradient is a new one
  const bool frozen = bool(o.adapters);
  const bool fresh = !frozen && (!o.te.fused_gradients || o.settings.te_release == TeRelease::v2_9);
  const std::int64_t inner_width = (s.gated ? 2 : 1) * s.width;
  const Matrices first{inner_width, s.hidden, s.local, fresh, frozen, o.settings.int4_experts, "experts.linear_fc1"};
  const Matrices second{s.hidden, s.width, s.local, fresh, frozen, o.settings.int4_experts, "experts.linear_fc2"};
  const auto multiplied = [&](const Tensor& x, const Shape& shape, const Matrices& m, bool original) {
    if (o.te.fp8 == Fp8Recipe::none) return product(g, x, shape, m);
    return te_fp8_grouped_linear(g, x, shape, {m.out, m.in, m.count, m.fresh_gradients}, original, o.te, m.name);
  };
  const RoutedRows in = s.copied ? padded(g, given, s) : given;
  const auto run_first = [&] { return multiplied(in.tokens, {s.padded_rows, Dim(inner_width)}, first, false); };
  const Tensor inner = o.adapters.fc1 ? adapted_experts(g, run_first(), in.tokens, o.te, o.adapters, first.name) : run_first();
  const Shape shape{s.padded_rows, Dim(s.width)}, result{s.padded_rows, Dim(s.hidden)};
  const auto cut = [&](Tensor out) {
    if (s.biases) out = apply_biases(g, out, in.weights, s);
    return s.copied ? moved_rows(g, out, {s.rows, Dim(s.hidden)}, {}, DType::bf16, "experts.cut") : out;
  };
  if (!recomputes(o, "moe_act")) {
    const Tensor active = weighted(g, s, inner, in.weights, shape);
    Tensor out = multiplied(active, result, second, false);
    if (!o.adapters.fc2) return cut(std::move(out));
    return cut(adapted_experts(g, out, active, o.te, o.adapters, second.name));
  }
  DiscardedOutputs activation;
  const auto again = [&g, s, shape](const std::vector<Tensor>& x) {
    return std::vector<Tensor>{weighted(g, s, x[0], x[1], shape)};
  };
  const std::vector<Tensor> active = activation.run(g, {inner, in.weights}, again);
  Tensor out = multiplied(active[0], result, second, true);  // set_save_original_input(linear_fc2)
  activation.discard(out);
  return cut(std::move(out));
}

/// SequentialMLP.forward: views of the rows, one MLP after another, and their results put together.
Tensor one_after_another(Eager& g, const RoutedRows& in, const RoutedSizes& s, const ChunkOptions& o) {
  const std::int64_t inner_width = (s.gated ? 2 : 1) * s.width;
  const bool frozen = bool(o.adapters), fresh = !frozen && !o.te.fused_gradients;
  const Share share = share_of(s);
  const auto count = static_cast<std::size_t>(s.local);
  const bool several = s.local > 1;
  const std::vector<Tensor> tokens =
      several ? split(g, in.tokens, std::vector<Shape>(count, share.of(s.hidden))) : std::vector<Tensor>{in.tokens};
  const std::vector<Tensor> weights =
      several ? split(g, in.weights, std::vector<Shape>(count, Shape{share.rows})) : std::vector<Tensor>{in.weights};
  std::vector<Tensor> results;
  for (std::size_t e = 0; e < count; ++e) {
    Tensor inner =
        product(g, tokens[e], share.of(inner_width), {inner_width, s.hidden, 1, fresh, frozen, false, "experts.linear_fc1"});
    if (s.biases && !(s.gated && s.fused)) {
      Tensor biased = megatron_with_bias(g, inner, "experts.linear_fc1.biased");
      inner = std::move(biased);
    }
    Tensor active = weighted(g, s, inner, weights[e], share.of(s.width));
    inner.reset();
    Tensor out = product(g, active, share.of(s.hidden), {s.hidden, s.width, 1, fresh, frozen, false, "experts.linear_fc2"});
    results.push_back(s.biases ? adding_weighted_bias(g, out, weights[e]) : std::move(out));
  }
  return several ? cat(g, std::move(results), {s.rows, Dim(s.hidden)}, "experts.joined") : results[0];
}

}  // namespace

Tensor run_megatron_experts(Eager& g, const RoutedRows& in, const RoutedSizes& s, const ChunkOptions& o) {
  return o.settings.grouped_experts ? grouped(g, in, s, o) : one_after_another(g, in, s, o);
}

}  // namespace oomplan
