// Modules of a layer that are Megatron-core's own (transformer_impl local) in place of Transformer Engine's.
//
// Read at megatron-core 0.16.1: megatron/core/tensor_parallel/{layers,mappings}.py,
// megatron/core/transformer/dot_product_attention.py, megatron/core/fusions/{fused_softmax,fused_layer_norm}.py,
// megatron/core/models/gpt/gpt_layer_specs.py (get_gpt_layer_local_spec). Norms stand in front of the halves as modules of their
// own. What products gather under sequence parallelism, and what the scores are written over, is one buffer that stays ("mpu" of
// GlobalMemoryBuffer): it is no tensor here. Legend as in te.hpp.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "layers/megatron.hpp"

namespace oomplan {

/// The norm in front of a half, whose output goes once it has been used where norms are recomputed.
Tensor behind_norm(Eager&, NormKind, const ChunkOptions&, const Tensor& x, const std::string& name,
                   const std::function<Tensor(const Tensor&)>& half);
/// ColumnParallelLinear: keeps this rank's part of its input. `out`: columns of this rank.
Tensor local_column_linear(Eager&, const Tensor& x, std::int64_t out, const TeOptions&, const std::string& name);
/// RowParallelLinear: sums are reduced in place; under sequence parallelism they are scattered by an operator of its own.
Tensor local_row_linear(Eager&, const Tensor& x, std::int64_t out, const TeOptions&, const std::string& name);

/// How DotProductAttention runs.
struct LocalAttention {
  bool fused_softmax = true;  ///< the kernel of mask and softmax takes the sizes, and is asked for
  bool fp32 = false;          ///< otherwise: the softmax is in fp32
  bool scales = false;        ///< ... and the scores are multiplied by a factor of the layer first
  bool dropout = false;
  Tensor mask;  ///< of the batch; without it and the kernel every call makes one
};
/// DotProductAttention over [S, B, heads, k]; the result's shape is the query's.
Tensor local_attention(Eager&, const Tensor& query, const Tensor& key, const Tensor& value, const LocalAttention&);
/// The same under a checkpoint where that is asked for; queries, keys and values.
Tensor run_local_core(Eager&, const std::vector<Tensor>& heads, const ChunkOptions&, const Tensor& mask);
/// FusedScaleMaskSoftmax.is_kernel_available, of B sequences of S tokens and this rank's heads.
bool local_softmax_kernel(std::int64_t sequences, std::int64_t heads, std::int64_t tokens);

}  // namespace oomplan
