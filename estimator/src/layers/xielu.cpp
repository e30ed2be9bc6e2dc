#include "layers/xielu.hpp"

#include "layers/ops.hpp"
#include "layers/ops_state.hpp"

namespace oomplan {
namespace {

using namespace ops;

/// torch.min(x, number): minimum's derivative is grad, halved where both are equal, zero where x is greater.
Tensor minimum(Eager& g, const Tensor& x, const std::string& name) {
  const bool recorded = g.will_record({&x});
  Saved saved = recorded ? g.save(x) : Saved();
  Tensor out = g.make(name, x.shape, x.dtype);
  if (!recorded) return out;
  g.record(out, "MinimumBackward0", {&x}, [&g, saved](Gradients in) {
    const Tensor& self = saved.get();
    Tensor filled;
    {
      Tensor equal = gradient(g, "minimum_backward.equal", self.shape, DType::boolean);
      Tensor half = gradient(g, "minimum_backward.half", in[0].shape, in[0].dtype);
      filled = gradient(g, "minimum_backward", in[0].shape, in[0].dtype);
    }
    Tensor greater = gradient(g, "minimum_backward.greater", self.shape, DType::boolean);
    return Gradients{filled};
  });
  return out;
}

/// expm1: grad * (result + 1)
Tensor expm1(Eager& g, Tensor x, const std::string& name) {
  if (g.autocast) x = to(g, std::move(x), DType::fp32, name + ".fp32");
  const bool recorded = g.will_record({&x});
  Tensor out = g.make(name, x.shape, x.dtype);
  if (!recorded) return out;
  Saved saved = g.save(out);
  g.record(out, "Expm1Backward0", {&x}, [&g, saved](const Gradients&) {
    const Tensor& result = saved.get();
    Tensor shifted = gradient(g, "expm1_backward.shifted", result.shape, result.dtype);
    return Gradients{gradient(g, "expm1_backward", result.shape, result.dtype)};
  });
  return out;
}

/// torch.where(condition, a, b): each gets zeros where the other was taken.
Tensor where(Eager& g, const Tensor& condition, Tensor a, Tensor b, const std::string& name) {
  const bool recorded = g.will_record({&a, &b});
  Saved saved = recorded ? g.save(condition) : Saved();
  Tensor out = g.make(name, a.shape, a.dtype == DType::fp32 ? a.dtype : b.dtype);
  if (!recorded) return out;
  g.record(out, "WhereBackward0", {&a, &b}, [&g, saved](Gradients in) {
    (void)saved.get();
    Tensor for_a = gradient(g, "where_backward", in[0].shape, in[0].dtype);
    return Gradients{for_a, gradient(g, "where_backward", in[0].shape, in[0].dtype)};
  });
  return out;
}

}  // namespace

Tensor xielu(Eager& g, const Tensor& x, int alpha_p, int alpha_n) {
  Tensor positive = softplus(g, g.leaf(alpha_p), "act.alpha_p"), negative;
  {
    Tensor bare = softplus(g, g.leaf(alpha_n), "act.alpha_n_bare");
    negative = add_scalar(g, std::move(bare), "act.alpha_n");
  }
  const Tensor condition = g.make("act.positive", x.shape, DType::boolean);
  Tensor above, below;
  {
    Tensor once = mul(g, positive, x, "act.alpha_x");
    Tensor twice = mul(g, std::move(once), x, "act.alpha_x_x");
    Tensor linear_part = scale(g, x, "act.beta_x");
    above = add(g, std::move(twice), std::move(linear_part), "act.above");
  }
  {
    Tensor bounded = minimum(g, x, "act.bounded");
    Tensor power = expm1(g, std::move(bounded), "act.expm1");
    Tensor difference = sub(g, std::move(power), x, "act.difference");
    Tensor scaled = mul(g, std::move(difference), negative, "act.scaled");
    Tensor linear_part = scale(g, x, "act.beta_x");
    below = add(g, std::move(scaled), std::move(linear_part), "act.below");
  }
  return where(g, condition, std::move(above), std::move(below), "act");
}

}  // namespace oomplan
