#include "layers/state_parts.hpp"

#include "layers/ops.hpp"
#include "layers/ops_state.hpp"

namespace oomplan {

using axis::B, axis::S;

Tensor causal_conv(Eager& g, const Tensor& x, const CausalConv& c) {
  const DType weights = g.leaves[static_cast<std::size_t>(c.weight)].dtype;
  Tensor by_channel = ops::view(x, {B, c.channels, S});
  Tensor out;
  {
    Tensor given = ops::to(g, by_channel, weights, "conv.input_cast");
    Tensor whole =
        ops::conv1d_by_channel(g, std::move(given), c.weight, c.bias, {B, c.channels, Dim(c.tokens + c.taps - 1)}, "conv");
    out = c.taps == 1 ? std::move(whole) : ops::slice(g, whole, {B, c.channels, S});
  }
  Tensor active = ops::activation(g, out, "conv.act");
  out = std::move(active);
  return ops::to(g, out, x.dtype, "conv.cast");
}

Tensor negative_rate(Eager& g, int a_log) {
  Tensor wide = ops::to(g, g.leaf(a_log), DType::fp32, "A_log_fp32");
  Tensor rate = ops::exp(g, std::move(wide), "A");
  return ops::neg(g, std::move(rate), "A_negated");
}

}  // namespace oomplan
