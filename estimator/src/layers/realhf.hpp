// realhf's own model under Megatron-core's buffers and optimizer: the trainer of AReaL 0.2.0 and 0.3.0, shipped until 0.5.1.
//
// Read in areal-project/AReaL 0.3.0, realhf/impl/model: nn/real_llm_base.py (ReaLModelBlock, VocabPositionEmbedding, heads),
// modules/{attn,mlp}.py, parallelism/tensor_parallel/modules.py, utils/functional.py. Executed:
// tests/data/executed_realhf.jsonl.
//
// Legend: S tokens that a rank holds between halves of a layer; t S under sequence parallelism inside of them; B is 1.
#pragma once
#include "layers/megatron.hpp"

namespace oomplan {

/// ReaLModelBlock._forward. `last`: the model's last block has the final norm inside.
Tensor run_realhf_layer(Eager&, const Architecture&, const Layer&, const ChunkOptions&, const Tensor& x, bool last);

/// The head and the loss that its role computes, up to sums over rows. `logits`: what the caller holds until backward has run.
Tensor run_realhf_head(Eager&, const Architecture&, const ChunkOptions&, const Tensor& hidden, const SharedWeight&,
                       Tensor& logits);

/// Why the model is none of realhf's families; "" when it is.
std::string unsupported_realhf(const Architecture&, const ChunkOptions&);

}  // namespace oomplan
