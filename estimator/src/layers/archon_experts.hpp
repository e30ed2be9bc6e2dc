// Experts of Archon's Qwen3 without expert parallelism: three matrices of all experts, grouped products of rows that are padded
// to multiples of 8 for each expert.
//
// Read in areal-project/AReaL, areal/experimental/models/archon/moe (moe.py, router.py, token_reorderer.py, grouped_experts.py,
// utils.py), 1.0.4. R = T k routed rows and R + 8 E padded ones are no multiples of each other, so a tape belongs to one number
// of tokens (KernelOptions::routed_tokens).
#pragma once
#include "layers/decoder.hpp"

namespace oomplan {

/// Parameters of a block under the names of their kind; experts' matrices are `gate`, `up` and `down`.
LayerLeaves declare_archon_layer(Eager& g, const Architecture&, const Layer&, DType);

/// MoE.forward: x of shape [B, S, H] is held by the caller.
Tensor archon_experts(Eager& g, const FeedForward&, std::int64_t hidden, const Tensor& x, const LayerLeaves&,
                      const KernelOptions&);

}  // namespace oomplan
