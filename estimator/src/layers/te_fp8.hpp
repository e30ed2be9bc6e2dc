// Linear layers of Transformer Engine in 8 bits, every tensor with a scale of its own that is found anew each time (current
// scaling, megatron-core's fp8_recipe tensorwise).
//
// Read in NVIDIA/TransformerEngine 2.17.1, transformer_engine/pytorch: module/{layernorm_linear,linear,base}.py, distributed.py
// (_all_gather_fp8), tensor/storage/float8_tensor_storage.py (update_usage), csrc/quantizer.cpp
// (Float8CurrentScalingQuantizer::create_tensor), csrc/extensions/normalization.cpp; and in megatron-core 0.16.1,
// megatron/core/transformer/attention.py (set_save_original_input).
//
// A GPU before Blackwell multiplies 8 bits only where both factors lie along the sum: a matrix that is needed along its other
// side, too, has a transposed copy. Later ones need none.
#pragma once
#include <string>

#include "layers/te.hpp"

namespace oomplan {

/// As te_norm_column_linear. The norm's output is made in 16 bits and kept in 8; under sequence parallelism it is gathered in 8.
Tensor te_fp8_norm_column_linear(Eager&, const Tensor& x, NormKind, std::int64_t out, const TeOptions&, const std::string& name);
/// As te_row_linear. `keeps_original`: the input is kept as it came, because another node keeps it anyway, and made 8 bits again
/// in backward (the projection behind the attention).
Tensor te_fp8_row_linear(Eager&, const Tensor& x, std::int64_t out, bool keeps_original, const TeOptions&,
                         const std::string& name);

}  // namespace oomplan
