// verl's fused output layers (use_fused_kernels): hidden states and lm_head's weight to log-probs and entropy, without logits of
// all tokens (verl verl/models/transformers/dense_common.py, 0.5 to 0.10).
//
// Legend as in heads.hpp; H hidden.
#pragma once
#include <optional>

#include <oomplan/job.hpp>

#include "layers/eager.hpp"
#include "layers/heads_verl.hpp"

namespace oomplan {

/// verl/utils/experimental/torch_functional.py: FusedLinearForPPO(chunk_size=512).
inline constexpr std::int64_t kVerlFusedRows = 512;

/// What one of these heads does.
struct VerlFused {
  bool triton = false;       ///< fused_kernel_options.impl_backend; else torch's
  bool log_softmax = false;  ///< torch's up to 0.7: log-probs in the model's format, not flash-attention's cross-entropy in fp32
  bool entropy = false;      ///< it is a part of the loss; it is computed in any case
};
/// Nothing for the heads of others.
std::optional<VerlFused> verl_fused(LossHead);

/// Of every token.
struct VerlFusedRows {
  Tensor log_probs, entropy;
};
/// Triton's backend on this rank's `columns` of the vocabulary, with a process group (verl/models/mcore/model_forward_fused.py,
/// 0.5 to 0.10). Both outputs belong to one node. `weight`: where its gradient goes; made also where that is nowhere.
VerlFusedRows verl_fused_over_ranks(Eager& g, const Tensor& hidden, const Tensor& labels, const Tensor& weight,
                                    std::int64_t columns, Dim tokens, bool entropy);

/// From hidden states [B, K, H], which the model's forward pass holds, to one number a token [TK]. `weight`: lm_head's leaf.
Tensor verl_fused_objective(Eager& g, const Tensor& hidden, const Tensor& labels, int weight, const VerlFused&,
                            const HeadChunks&);

}  // namespace oomplan
