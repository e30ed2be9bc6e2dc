// Rotary positions: apply_rotary_pos_emb of the modeling files.
#pragma once
#include "layers/decoder.hpp"
#include "layers/families.hpp"

namespace oomplan {

struct Rotated {
  Tensor query, key;
  std::vector<Tensor> names = {};  ///< what the caller keeps names for to its end
};
/// q, k of shape [B, heads, S, d], held by the caller.
Rotated apply_rotary(Eager& g, const RotaryCode&, const LayerContext&, const Tensor& q, const Tensor& k);

/// x * cos + rotate_half(x) * sin.
Tensor rotate(Eager& g, const LayerContext&, const Tensor& x, const std::string& name);

}  // namespace oomplan
