// Dense feed-forward blocks of the modeling files.
#pragma once
#include <string>

#include "layers/decoder.hpp"
#include "layers/families.hpp"

namespace oomplan {

/// Weights and biases of a gated block, as leaves; gate_up: both in one matrix.
struct GatedLeaves {
  int gate = -1, gate_bias = -1, up = -1, up_bias = -1, gate_up = -1, down = -1, down_bias = -1;
};

/// down_proj(act_fn(gate_proj(x)) * up_proj(x)); `rows`: x's leading axes. Under tensor parallelism down_proj's partial sums are
/// reduced while its input, an argument of the call, is there. Liger has one kernel for activation and product.
Tensor gated_mlp(Eager& g, const Tensor& x, Shape rows, Dim hidden, Dim width, const GatedLeaves&, const std::string& name,
                 const KernelOptions& options = {});

/// fc2(act(fc1(x))): one name, rebound. A caller that writes these lines itself moves its x in.
Tensor plain_mlp(Eager& g, const FamilyCode&, Tensor x, const Shape& rows, Dim hidden, const FeedForward&, const LayerLeaves&);

/// GraniteMoeSharedMLP: act(first half) * second half of one product; the chunks keep their names.
Tensor granite_mlp(Eager& g, const Tensor& x, Dim hidden, std::int64_t width, int input, int output);

/// The activation of a block without a gate.
Tensor activate(Eager& g, Activation kind, const Tensor& x);

/// A linear layer as the family stores it.
Tensor project(Eager& g, const FamilyCode&, Tensor x, int weight, int bias, Shape out, const std::string& name);

}  // namespace oomplan
