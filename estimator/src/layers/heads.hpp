// What stands behind the last hidden state: lm_head, and the losses and log-prob functions of transformers, verl and AReaL.
//
// Legend: B sequences, K tokens of one that reach the head, TK = B*K, V vocabulary, C rows of a chunk.
// The multiples of TK*V bytes that each head reaches were executed (docs/training.md); here they follow from who holds what.
#pragma once
#include <oomplan/job.hpp>

#include "layers/eager.hpp"

namespace oomplan {

struct HeadOptions {
  LossHead head = LossHead::hf_loss;
  bool keep_outputs = false;  ///< the caller keeps the model's output through the backward pass
  std::int64_t vocab = 0;
  int chunks = 1;  ///< of a chunked head: as many as are simulated
};

/// Rows of a chunk of the head, 0 when it is not chunked. AReaL areal/utils/functional/vocab_parallel.py: 1024; verl
/// verl/utils/torch_functional.py: 2048 of the entropy, one of logprobs_from_logits_v2.
std::int64_t chunk_rows(LossHead);
/// The head goes through its rows chunk by chunk. Rows of a chunk of liger_fused_ce depend on sizes: liger::fused_head_rows.
bool runs_in_chunks(LossHead);
/// The loss is computed inside the model's forward pass (so the root unit's hooks come behind it).
bool inside_model(LossHead);

/// cross_entropy: log_softmax and nll_loss of logits with one row a token.
Tensor cross_entropy(Eager& g, const Tensor& logits, const Tensor& labels);

/// From logits to the loss. `logits` is the caller's only reference; scope(i) is called before chunk i, scope(-1) behind the
/// last.
Tensor run_head(Eager& g, Tensor logits, const HeadOptions&, const std::function<void(int)>& scope);

}  // namespace oomplan
