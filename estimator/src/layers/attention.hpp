// Softmax attention of transformers' decoder layers: projections, rotary positions, Ulysses exchange and the kernels.
#pragma once
#include "layers/families.hpp"
#include "layers/kernels.hpp"

namespace oomplan {

/// The output is that of o_proj, [B, S, H].
Attended run_attention(Eager& g, const FamilyCode&, const Mixer&, std::int64_t hidden, const LayerLeaves&, const KernelOptions&,
                       const LayerContext&, const Tensor& x);

/// Ministral 3, Mistral 4: query * (1 + beta * log(1 + floor(position / original length))).to(dtype).
Tensor scale_query(Eager& g, const Tensor& query);

}  // namespace oomplan
