// Softmax attention of transformers' decoder layers: projections, rotary positions, Ulysses exchange and the kernels.
#pragma once
#include "layers/decoder.hpp"
#include "layers/families.hpp"

namespace oomplan {

struct Attended {
  Tensor output;   ///< behind o_proj, [B, S, H]
  Tensor weights;  ///< eager only: the probabilities that the module returns
};
Attended run_attention(Eager& g, const FamilyCode&, const Mixer&, std::int64_t hidden, const LayerLeaves&, const KernelOptions&,
                       const LayerContext&, const Tensor& x);

}  // namespace oomplan
