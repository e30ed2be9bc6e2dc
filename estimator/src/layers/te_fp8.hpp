// Linear layers of Transformer Engine in 8 bits, with the scales of every recipe.
//
// Read in NVIDIA/TransformerEngine 2.17.1, transformer_engine/pytorch: module/{layernorm_linear,linear,grouped_linear,base}.py,
// distributed.py (_all_gather_fp8, _start_all_gather_fp8_blockwise, _all_gather_mxfp8), csrc/extensions/normalization.cpp; and in
// megatron-core 0.16.1 set_save_original_input and what calls it. Executed: benchmarks/oracle/execute_megatron_fp8.py.
#pragma once
#include <functional>
#include <string>

#include "layers/te.hpp"

namespace oomplan {

/// As te_norm_column_linear. The norm's output is made in 16 bits and kept in 8 (delayed scaling: made in 8 bits at once); under
/// sequence parallelism it is gathered in 8.
Tensor te_fp8_norm_column_linear(Eager&, const Tensor& x, NormKind, std::int64_t out, const TeOptions&, const std::string& name);
/// As te_column_linear. `keeps_original`: the input is kept as it came, because another node keeps it anyway, and made 8 bits
/// again in backward.
Tensor te_fp8_column_linear(Eager&, const Tensor& x, std::int64_t out, bool keeps_original, const TeOptions&,
                            const std::string& name);
/// As te_row_linear.
Tensor te_fp8_row_linear(Eager&, const Tensor& x, std::int64_t out, bool keeps_original, const TeOptions&,
                         const std::string& name);

/// Matrices [out, in] of so many experts.
struct GroupedMatrices {
  std::int64_t out = 0, in = 0, count = 1;
  bool fresh_gradients = false;  ///< no cached tensor stands for their gradients
};
/// GroupedLinear over rows; `shape`: of the result.
Tensor te_fp8_grouped_linear(Eager&, const Tensor& x, const Shape& shape, const GroupedMatrices&, bool keeps_original,
                             const TeOptions&, const std::string& name);

}  // namespace oomplan
