// Attention of AReaL's tree training under Archon: sequences that begin alike share their tokens, and a mask over all pairs of
// tokens says who sees whom.
//
// TreeAttentionWrapper calls flex_attention without torch.compile (areal/models/tree_attn/module_archon.py, 1.0.0 to 2.0.0), so
// PyTorch's dense functions run: math_attention and sdpa_dense_backward of torch/_higher_order_ops/flex_attention.py, 2.13. They
// make scores of all pairs for all heads, in fp32.
#pragma once
#include "layers/eager.hpp"

namespace oomplan {

/// TreeAttentionMeta.from_trie: the mask of all pairs of tokens, and what makes blocks of it (module_fsdp.py:
/// create_block_mask_from_dense; torch/nn/attention/flex_attention.py: create_block_mask).
Tensor tree_mask(Eager& g, const Dim& tokens);

/// q [B, T, heads, d], k and v [B, T, kv heads, d].
Tensor tree_attention(Eager& g, const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& mask);

}  // namespace oomplan
