// Fused adapters of foundation-model-stack/fms-acceleration, plugins/fused-ops-and-kernels (read at 0.6.1):
// fused_ops/unsloth_lora/bnb/fast_lora.py and gptq/fast_lora.py, LoRA_QKV and LoRA_W, with utils.py matmul_lora.
//
// One function does a quantised matrix's product and that of its pair: nothing is saved but its input and, for each pair, what
// dropout left of it. Its functions for a feed-forward block (LoRA_MLP) multiply a gradient of the hidden width by a mask of the
// block's width in backward, which fails: validate_foak.hpp refuses them.
#pragma once
#include "layers/eager.hpp"

namespace oomplan::foak {

/// The matrix has a pair beside it.
bool adapted(const Eager& g, int weight);

struct Projections {
  Tensor query, key, value;
};
/// LoRA_QKV.apply: x [B, S, h]; weights are leaves of packed matrices with pairs.
Projections low_rank_qkv(Eager& g, const Tensor& x, int query, int key, int value);
/// LoRA_W.apply.
Tensor low_rank_output(Eager& g, const Tensor& x, int weight);

}  // namespace oomplan::foak
