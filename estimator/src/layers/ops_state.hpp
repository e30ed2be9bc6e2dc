// Operators of linear attention and state-space layers: convolutions, scans, writes into a part of a tensor.
//
// As in ops.hpp: one operator each, with its derivative from tools/autograd/derivatives.yaml and
// torch/csrc/autograd/FunctionsManual.cpp (PyTorch 2.13). Shapes that broadcasting gives are stated.
#pragma once
#include <string>

#include "layers/eager.hpp"

namespace oomplan::ops {

/// a * b, both broadcast to `out`.
Tensor outer(Eager& g, Tensor a, Tensor b, Shape out, const std::string& name);
/// a - b, both broadcast to `out`.
Tensor difference(Eager& g, Tensor a, Tensor b, Shape out, const std::string& name);
/// x.masked_fill(mask, number): saves the mask.
Tensor masked_fill(Eager& g, Tensor x, const Tensor& mask, const std::string& name);
Tensor cumsum(Eager& g, Tensor x, const std::string& name);
Tensor softplus(Eager& g, Tensor x, const std::string& name);
/// F.pad of the tokens at the end; a copy also where nothing is padded.
Tensor pad(Eager& g, Tensor x, Shape out, const std::string& name);
/// x.repeat_interleave(times, axis): one copy; the gradient is summed.
Tensor repeat_interleave(Eager& g, Tensor x, Shape out, const std::string& name);
/// F.conv1d over tokens with a filter for each channel: x [B, channels, S], out [B, channels, S + taps - 1].
Tensor conv1d_by_channel(Eager& g, Tensor x, int weight, int bias, Shape out, const std::string& name);
/// torch.linalg.solve_triangular(matrix, right): saves the matrix and the result.
Tensor solve_triangular(Eager& g, Tensor matrix, Tensor right, const std::string& name);
/// whole[..., i:j].copy_(part); the tensor as it is then.
Tensor copy_into(Eager& g, const Tensor& whole, const Tensor& part, const Shape& part_shape);
/// A view whose gradient does not lie as the view's input does: it is copied.
Tensor view_copied_back(Eager& g, const Tensor& x, Shape as, const std::string& name);
/// x.clamp_(min, max): what x was is saved as a copy.
Tensor clamp_in_place(Eager& g, const Tensor& x, const std::string& name);
/// A view with another shape that keeps its place in the graph.
Tensor view(Tensor x, Shape as);

}  // namespace oomplan::ops
