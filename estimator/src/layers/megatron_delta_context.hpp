// Gated delta rules of Megatron-core where several ranks share the tokens of a sequence out: around the rule each has all tokens
// of a part of the heads.
//
// megatron/core/ssm/gated_delta_net.py (tensor_a2a_cp2hp, tensor_a2a_hp2cp, get_parameter_local_cp) and
// mamba_context_parallel.py, 0.18.0. Of padded sequences: of packed ones each is exchanged by itself.
#pragma once
#include <cstdint>
#include <vector>

#include "layers/megatron.hpp"

namespace oomplan {

/// From this rank's tokens to all of them, in order. `widths`: of every section of the row, of a rank's heads.
Tensor tokens_for_heads(Eager&, const Tensor& x, const std::vector<std::int64_t>& widths, const ChunkOptions&);
/// The way back.
Tensor heads_for_tokens(Eager&, const Tensor& x, const ChunkOptions&);
/// The convolution's weight for these heads: a copy. `channels`: of a rank's heads.
Tensor heads_of_weight(Eager&, std::int64_t channels, std::int64_t kernel, const ChunkOptions&);

}  // namespace oomplan
