#include "layers/state_parts.hpp"

#include "layers/ops.hpp"
#include "layers/ops_state.hpp"

namespace oomplan {

using axis::B, axis::S;

namespace {

/// F.silu(conv1d(x)[:, :, :tokens]); x is [B, channels, tokens]
Tensor convolved(Eager& g, const Tensor& x, const CausalConv& c, const Shape& shape) {
  const DType weights = g.leaves[static_cast<std::size_t>(c.weight)].dtype;
  Tensor out;
  {
    Tensor given = ops::to(g, x, weights, "conv.input_cast");
    Tensor whole =
        ops::conv1d_by_channel(g, std::move(given), c.weight, c.bias, {B, c.channels, Dim(c.tokens + c.taps - 1)}, "conv");
    out = c.taps == 1 ? std::move(whole) : ops::slice(g, whole, shape);
  }
  Tensor active = ops::activation(g, out, "conv.act");
  out = std::move(active);
  return ops::to(g, out, x.dtype, "conv.cast");
}

}  // namespace

Tensor causal_conv(Eager& g, const Tensor& x, const CausalConv& c) {
  const Shape by_channel{B, c.channels, S};
  return convolved(g, ops::view(x, by_channel), c, by_channel);
}

Tensor causal_conv_by_sequence(Eager& g, const Tensor& x, const CausalConv& c, const std::vector<std::int64_t>& lengths) {
  std::vector<Tensor> outputs;
  for (const std::int64_t length : lengths) {
    CausalConv one = c;
    one.tokens = length;
    const Shape shape{B, c.channels, Dim(length)};
    Tensor segment = lengths.size() == 1 ? ops::view(x, shape) : ops::slice(g, x, shape);  // the whole is no slice
    outputs.push_back(convolved(g, segment, one, shape));
  }
  return ops::cat(g, outputs, x.shape, "conv.joined");
}

Tensor negative_rate(Eager& g, int a_log) {
  Tensor wide = ops::to(g, g.leaf(a_log), DType::fp32, "A_log_fp32");
  Tensor rate = ops::exp(g, std::move(wide), "A");
  return ops::neg(g, std::move(rate), "A_negated");
}

}  // namespace oomplan
