// Dense feed-forward blocks of the modeling files.
#pragma once
#include <string>

#include "layers/decoder.hpp"

namespace oomplan {

/// Weights and biases of a gated block, as leaves; gate_up: both in one matrix.
struct GatedLeaves {
  int gate = -1, gate_bias = -1, up = -1, up_bias = -1, gate_up = -1, down = -1, down_bias = -1;
};

/// down_proj(act_fn(gate_proj(x)) * up_proj(x)); `rows`: x's leading axes.
Tensor gated_mlp(Eager& g, const Tensor& x, Shape rows, Dim hidden, Dim width, const GatedLeaves&, const std::string& name);

/// chunk(2, dim=-1): two views, whose gradients one cat puts together.
struct Halves {
  Tensor first, second;
};
Halves chunk(Eager& g, const Tensor& x, const Shape& half);

}  // namespace oomplan
