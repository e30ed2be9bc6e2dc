// Gemma 3n and 4: what their modeling files have in common beside Gemma 3 (transformers 5.23,
// models/{gemma3n,gemma4}/modeling_*.py).
#pragma once
#include "layers/families.hpp"
#include "layers/kernels.hpp"

namespace oomplan {

/// Queries, keys and values are normed and queries and keys rotated one after another; some layers use what an earlier one
/// stored. The output is that of o_proj, [B, S, H].
Attended run_normed_attention(Eager& g, const FamilyCode&, const Mixer&, std::int64_t hidden, const LayerLeaves&,
                              const KernelOptions&, const LayerContext&, const Tensor& x);

/// Gemma 4: experts beside the dense block, of the layer's `residual`; norms around both, then their sum. `dense`: the dense
/// block's output, the caller's `hidden_states`. `weights`: the layer's underscore, which the router's probabilities take.
Tensor join_experts(Eager& g, const FamilyCode&, const FeedForward&, std::int64_t hidden, const Tensor& dense,
                    const Tensor& residual, const LayerLeaves&, const KernelOptions&, Tensor& weights);

/// Gemma 4: hidden_states + norm(projection(act(gate(hidden_states)) * the layer's own input)).
Tensor join_layer_input(Eager& g, const FamilyCode&, const Layer&, std::int64_t hidden, const Tensor& x, const LayerLeaves&,
                        const LayerContext&);

}  // namespace oomplan
