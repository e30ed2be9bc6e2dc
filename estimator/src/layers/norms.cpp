#include "layers/norms.hpp"

#include "layers/liger.hpp"
#include "layers/ops.hpp"

namespace oomplan {
namespace {

using namespace ops;

/// rsqrt(mean(x^2) + eps).
Tensor inverse_root(Eager& g, const Tensor& x, const std::string& name) {
  Tensor squares = pow2(g, x);
  Tensor variance = mean_last(g, std::move(squares));
  Tensor shifted = add_scalar(g, std::move(variance), name + ".variance");
  return rsqrt(g, std::move(shifted), name + ".rstd");
}

/// x.to(fp32) * rsqrt(x.pow(2).mean(-1, keepdim=True) + eps); `variance` is a name of its own.
Tensor rms_in_fp32(Eager& g, const Tensor& x, const std::string& name) {
  Tensor hidden = to(g, x, DType::fp32, name + ".fp32");
  Tensor variance;
  {
    Tensor squares = pow2(g, hidden);
    variance = mean_last(g, std::move(squares));
  }
  Tensor shifted = add_scalar(g, variance, name + ".variance");
  Tensor root = rsqrt(g, std::move(shifted), name + ".rstd");
  return mul(g, std::move(hidden), std::move(root), name + ".normed_fp32");
}

Tensor rms(Eager& g, const Tensor& x, int weight, const std::string& name) {
  Tensor hidden = rms_in_fp32(g, x, name);
  Tensor cast = to(g, hidden, x.dtype, name + ".normed");
  if (weight < 0) return cast;
  return mul(g, g.leaf(weight), std::move(cast), name + ".output");
}

Tensor rms_cast_last(Eager& g, const Tensor& x, int weight, const std::string& name, bool wide_weight) {
  Tensor hidden = rms_in_fp32(g, x, name);
  Tensor by = wide_weight ? to(g, g.leaf(weight), DType::fp32, name + ".weight_fp32") : g.leaf(weight);
  Tensor weighted = mul(g, std::move(by), hidden, name + ".weighted");
  return to(g, std::move(weighted), x.dtype, name + ".output");
}

/// Gemma 3n, 4: `normed_output` is rebound. pow(x, -0.5) saves its input, the product its result.
Tensor rms_by_power(Eager& g, const Tensor& x, int weight, const std::string& name) {
  Tensor normed;
  {
    Tensor hidden = to(g, x, DType::fp32, name + ".fp32");
    Tensor squares = pow2(g, hidden);
    Tensor mean = mean_last(g, std::move(squares));
    Tensor shifted = add_scalar(g, std::move(mean), name + ".variance");
    Tensor root = power(g, shifted, name + ".rstd");
    normed = mul(g, hidden, std::move(root), name + ".normed_fp32");
  }
  if (weight >= 0) {
    Tensor wide = to(g, g.leaf(weight), DType::fp32, name + ".weight_fp32");
    Tensor weighted = mul(g, normed, std::move(wide), name + ".weighted");
    normed = std::move(weighted);
  }
  return to(g, normed, x.dtype, name + ".output");
}

/// Gemma: `output` is rebound; the fp32 copy of the weight and 1 + weight are unnamed.
Tensor rms_plus_one(Eager& g, const Tensor& x, int weight, const std::string& name) {
  Tensor output;
  {
    Tensor wide = to(g, x, DType::fp32, name + ".fp32");
    Tensor root = inverse_root(g, wide, name);
    output = mul(g, std::move(wide), std::move(root), name + ".normed_fp32");
  }
  Tensor one_more;
  {
    Tensor wide = to(g, g.leaf(weight), DType::fp32, name + ".weight_fp32");
    one_more = add_scalar(g, std::move(wide), name + ".weight_plus_one");
  }
  Tensor weighted = mul(g, output, std::move(one_more), name + ".weighted");
  output = std::move(weighted);
  return to(g, output, x.dtype, name + ".output");
}

/// F.layer_norm: saves its input, mean and inverse deviation. CUDA's autocast computes it in fp32: 16-bit arguments are cast, the
/// last one first (aten/src/ATen/autocast_mode.h, 2.13, AT_FORALL_FP32).
Tensor layer(Eager& g, Tensor x, const NormLeaf& leaf, const std::string& name) {
  Tensor w = leaf.weight >= 0 ? g.leaf(leaf.weight) : Tensor(), b = leaf.bias >= 0 ? g.leaf(leaf.bias) : Tensor();
  if (g.autocast) {
    if (b) b = to(g, std::move(b), DType::fp32, name + ".bias_fp32");
    if (w) w = to(g, std::move(w), DType::fp32, name + ".weight_fp32");
    x = to(g, std::move(x), DType::fp32, name + ".input_fp32");
  }
  std::vector<const Tensor*> inputs{&x};
  if (w) inputs.push_back(&w);
  if (b) inputs.push_back(&b);
  const bool recorded = g.will_record(inputs);
  // in the order of derivatives.yaml's names: bias, input, weight, results
  Saved saved_b = recorded && b ? g.save(b) : Saved(), saved = recorded ? g.save(x) : Saved();
  Saved saved_w = recorded && w ? g.save(w) : Saved();
  Tensor out = g.make(name + ".output", x.shape, x.dtype);
  Tensor mean = g.make(name + ".mean", with_last(x.shape, 1), DType::fp32);
  Tensor root = g.make(name + ".rstd", with_last(x.shape, 1), DType::fp32);
  if (!recorded) return out;
  Saved saved_mean = g.save(mean), saved_root = g.save(root);
  const Shape width = w ? w.shape : Shape();
  const bool for_x = x.needs_grad(), has_w = bool(w), has_b = bool(b);
  g.record(out, "NativeLayerNormBackward0", inputs, [=, &g](Gradients in) {
    for (const Saved* s : {&saved_b, &saved, &saved_w, &saved_mean, &saved_root}) (void)s->get();
    const Tensor& self = saved.get();
    Gradients grads(1);
    if (for_x) grads[0] = g.make(name + ".backward", self.shape, in[0].dtype, Category::temporaries);
    if (has_w) grads.push_back(g.make(name + ".weight_gradient", width, in[0].dtype, Category::gradients));
    if (has_b) grads.push_back(g.make(name + ".bias_gradient", width, in[0].dtype, Category::gradients));
    return grads;
  });
  return out;
}

/// OLMo: F.layer_norm(x.to(fp32)).to(dtype).
Tensor layer_in_fp32(Eager& g, const Tensor& x, const NormLeaf& leaf, const std::string& name) {
  Tensor wide = to(g, x, DType::fp32, name + ".fp32");
  Tensor out = layer(g, std::move(wide), leaf, name);
  return to(g, std::move(out), x.dtype, name + ".cast");
}

/// x - mean, in fp32: saves nothing.
Tensor centred(Eager& g, const Tensor& x, const Tensor& mean, const std::string& name) {
  Tensor out = g.make(name + ".centred", x.shape, x.dtype);
  g.record(out, "SubBackward0", {&x, &mean}, [&g](Gradients in) {
    return Gradients{in[0], g.make("sub_backward", in[0].shape, in[0].dtype, Category::temporaries)};
  });
  return out;
}

/// Cohere: mean and variance by hand.
Tensor layer_by_hand(Eager& g, const Tensor& x, int weight, const std::string& name) {
  Tensor hidden = to(g, x, DType::fp32, name + ".fp32");
  Tensor mean = mean_last(g, hidden);
  Tensor variance;
  {
    Tensor difference = centred(g, hidden, mean, name);
    Tensor squares = pow2(g, std::move(difference));
    variance = mean_last(g, std::move(squares));
  }
  {
    Tensor difference = centred(g, hidden, mean, name);
    Tensor shifted = add_scalar(g, variance, name + ".variance");
    Tensor root = rsqrt(g, std::move(shifted), name + ".rstd");
    hidden = mul(g, std::move(difference), std::move(root), name + ".normed_fp32");
  }
  {
    Tensor wide = to(g, g.leaf(weight), DType::fp32, name + ".weight_fp32");
    Tensor weighted = mul(g, std::move(wide), hidden, name + ".weighted");
    hidden = std::move(weighted);
  }
  return to(g, hidden, x.dtype, name + ".output");
}

}  // namespace

NormLeaf declare_norm(Eager& g, NormKind kind, const std::string& name, std::int64_t h, DType dtype) {
  NormLeaf out;
  if (kind == NormKind::none || kind == NormKind::non_parametric) return out;
  out.weight = g.parameter(name + ".weight", {h}, dtype);
  if (kind == NormKind::layer) out.bias = g.parameter(name + ".bias", {h}, dtype);
  for (const int leaf : {out.weight, out.bias})
    if (leaf >= 0) g.leaves[static_cast<std::size_t>(leaf)].replicated = true;
  return out;
}

Tensor fused_rms_norm(Eager& g, const Tensor& x, int weight, const std::string& name) {
  Tensor w = g.leaf(weight);
  const bool recorded = g.will_record({&x, &w});
  Saved saved = recorded ? g.save(x) : Saved();
  Tensor out = g.make(name + ".output", x.shape, x.dtype);
  Tensor root = g.make(name + ".rstd", with_last(x.shape, 1), DType::fp32);
  if (!recorded) return out;
  Saved saved_root = g.save(root);
  g.record(out, "FusedRmsNormBackward0", {&x, &w},
           [&g, saved, saved_root, name, width = w.shape, format = w.dtype](Gradients in) {
             (void)saved_root.get();
             Tensor for_x = g.make(name + ".backward", saved.get().shape, in[0].dtype, Category::temporaries);
             return Gradients{for_x, g.make(name + ".weight_gradient", width, format, Category::gradients)};
           });
  return out;
}

Tensor run_norm(Eager& g, NormCode code, const Tensor& x, const NormLeaf& leaf, const std::string& name,
                const LigerOptions& fused) {
  if (fused.rms_norm && code == NormCode::rms)
    return liger::rms_norm(g, x, leaf.weight, {.multiprocessors = fused.multiprocessors, .code = fused.code}, name);
  switch (code) {
    case NormCode::rms:
      return rms(g, x, leaf.weight, name);
    case NormCode::rms_cast_last:
    case NormCode::rms_wide_cast:
      return rms_cast_last(g, x, leaf.weight, name, code == NormCode::rms_wide_cast);
    case NormCode::rms_by_power:
      return rms_by_power(g, x, leaf.weight, name);
    case NormCode::rms_plus_one:
      return rms_plus_one(g, x, leaf.weight, name);
    case NormCode::layer:
      return layer(g, x, leaf, name);
    case NormCode::layer_in_fp32:
      return layer_in_fp32(g, x, leaf, name);
    case NormCode::layer_by_hand:
      return layer_by_hand(g, x, leaf.weight, name);
  }
  return {};
}

}  // namespace oomplan
