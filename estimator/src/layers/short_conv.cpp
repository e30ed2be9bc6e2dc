#include "layers/short_conv.hpp"

#include "layers/ops.hpp"
#include "layers/ops_state.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::S, axis::T;

/// causal_conv1d_fn without an activation: cast, convolved with padding, cut to the tokens, cast back.
Tensor convolve(Eager& g, const Tensor& x, const StateLeaves& w, const Mixer& m, Dim channels, std::int64_t tokens) {
  const DType weights = g.leaves[static_cast<std::size_t>(w.conv)].dtype;
  Tensor given = to(g, x, weights, "conv.input_cast");
  Tensor whole =
      conv1d_by_channel(g, std::move(given), w.conv, w.conv_bias, {B, channels, Dim(tokens + m.conv_kernel - 1)}, "conv");
  Tensor out = m.conv_kernel == 1 ? std::move(whole) : slice(g, whole, {B, channels, S});
  return to(g, std::move(out), x.dtype, "conv.cast");
}

}  // namespace

Tensor run_short_conv(Eager& g, const Mixer& m, std::int64_t hidden, const LayerLeaves& leaves, const KernelOptions& options,
                      const Tensor& x) {
  const StateLeaves& w = leaves.state;
  const Dim width = hidden;
  Tensor rows = linear(g, x, w.in, w.in_bias, T, {B, S, Dim(3) * width}, "conv.in_proj");
  // the gradient comes by channel: several sequences are no matrix so
  const Shape by_channel{B, Dim(3) * width, S};
  Tensor projected =
      options.several_sequences ? view_copied_back(g, rows, by_channel, "conv.in_proj.gradient_rows") : view(rows, by_channel);
  rows.reset();
  const Shape part{B, width, S};
  const std::vector<Tensor> parts = split(g, projected, {part, part, part});
  Tensor states = mul(g, parts[0], parts[2], "conv.gated");
  Tensor convolved = convolve(g, states, w, m, width, options.scan_tokens);
  states = std::move(convolved);
  Tensor y = mul(g, parts[1], states, "conv.output");
  y.shape = {B, S, width};
  return linear(g, y, w.out, w.out_bias, T, {B, S, width}, "conv.out_proj");
}

}  // namespace oomplan
