#include "layers/operators_layer.hpp"

#include "layers/liger.hpp"
#include "layers/norms.hpp"
#include "layers/ops.hpp"
#include "layers/rotary.hpp"

namespace oomplan {
namespace {

using namespace ops;

/// linkedin/Liger-Kernel src/liger_kernel/ops/fused_add_rms_norm.py (0.6.1 to 0.8.2), not in place: the sum is the second
/// output and what is kept; one gradient goes to both inputs.
Tensor fused_add_rms_norm(Eager& g, const Tensor& x, const Tensor& residual, int weight, const Tensor& residual_gradient,
                          std::int64_t multiprocessors) {
  Tensor w = g.leaf(weight);
  Tensor out = g.make("output", x.shape, x.dtype);
  Tensor sum = g.make("sum", x.shape, x.dtype);
  Tensor root = g.make("rstd", with_last(x.shape, 1), DType::fp32);
  if (!g.will_record({&x, &residual, &w})) return out;
  Saved saved = g.save(sum), saved_root = g.save(root);
  g.record(out, "LigerFusedAddRMSNormFunctionBackward", {&x, &residual, &w},
           [=, &g, width = w.shape, format = w.dtype](const Gradients& in) {
             (void)saved_root.get();
             (void)residual_gradient;  // read by the kernel
             Tensor parts = g.make("weight_gradients", {Dim(multiprocessors), width[0]}, DType::fp32, Category::temporaries);
             Tensor given = gradient(g, "input.gradient", saved.get().shape, in[0].dtype);
             Tensor total = g.row_sum(parts, width, "weight_gradient", Category::gradients);
             return Gradients{given, given, to(g, std::move(total), format, "weight_gradient")};
           });
  return out;
}

}  // namespace

OperatorSetup::Forward rope_operator(const OperatorSetup& s) {
  const std::int64_t tokens = s.size("tokens"), heads = s.size("heads"),
                     width = std::max<std::int64_t>(1, s.size("hidden") / heads);
  const Shape query{1, heads, tokens, width}, key{1, s.size("key_heads"), tokens, width}, table{1, tokens, width};
  const auto dq = std::make_shared<Tensor>(), dk = std::make_shared<Tensor>(), name = std::make_shared<Tensor>();
  const Tensor q = s.input("q", query, s.call.dtype, dq), k = s.input("k", key, s.call.dtype, dk);
  const Tensor k_gradient = s.g.make("k.output_gradient", key, s.call.dtype, Category::inputs);
  LayerContext context;
  context.cos = s.g.make("cos", table, s.call.dtype, Category::inputs);
  context.sin = s.g.make("sin", table, s.call.dtype, Category::inputs);
  const Tensor positions = s.g.make("position_ids", {1, tokens}, DType::int64, Category::inputs);
  const bool liger = s.is("liger");
  return [s, q, k, k_gradient, context, positions, dq, dk, name, liger] {
    for (const auto& left : {dq, dk, name}) left->reset();
    if (liger) {
      const liger::Pair out = liger::rope(s.g, q, k, context.cos, context.sin, false);
      return s.both(out.query, out.key, k_gradient);
    }
    const Rotated out = apply_rotary(s.g, RotaryCode{}, context, q, k);
    *name = out.key;
    return s.both(out.query, out.key, k_gradient);
  };
}

OperatorSetup::Forward add_rms_norm_operator(const OperatorSetup& s) {
  const Shape shape{s.size("tokens"), s.size("hidden")};
  const int weight = s.weight("weight", {s.size("hidden")});
  const Tensor x = s.input("x", shape, s.call.dtype, std::make_shared<Tensor>(), true);
  const Tensor residual = s.input("residual", shape, s.call.dtype);
  const Tensor given = s.g.make("residual.output_gradient", shape, s.call.dtype, Category::inputs);
  const auto name = std::make_shared<Tensor>();
  if (s.is("liger"))
    return [s, x, residual, weight, given] { return fused_add_rms_norm(s.g, x, residual, weight, given, s.multiprocessors); };
  const bool apart = s.is("liger_rms_norm");
  const int outer = apart ? s.weight("outer.weight", {s.size("hidden")}) : -1;
  return [s, x, residual, weight, outer, given, apart, name] {
    name->reset();
    Tensor sum = add(s.g, x, residual, "sum");
    *name = sum;
    if (!apart) return s.both(run_norm(s.g, NormCode::rms, sum, {weight, -1}, "norm"), sum, given);
    const liger::Norm norm{false, false, s.multiprocessors, s.code};
    Tensor normed = liger::rms_norm(s.g, sum, weight, norm, "norm");
    return s.both(mul(s.g, s.g.leaf(outer), std::move(normed), "output"), sum, given);
  };
}

}  // namespace oomplan
