// BLOOM's layer: distances to earlier tokens (ALiBi) are added to the scores, whose product they start from.
#pragma once
#include "layers/decoder.hpp"

namespace oomplan {

/// BloomBlock.forward. `weights` becomes the attention's probabilities, which the block returns.
Tensor run_bloom_layer(Eager& g, const Architecture&, const Layer&, const LayerLeaves&, const KernelOptions&, const LayerContext&,
                       const Tensor& x, Tensor& weights);

/// alibi: [B * heads, 1, S], in the compute dtype. `slopes` is a name of the model, to its end.
Tensor make_alibi(Eager& g, std::int64_t heads, DType dtype, Tensor& slopes);

}  // namespace oomplan
