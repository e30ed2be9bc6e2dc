// What stands behind the last hidden state: lm_head, and the losses and log-prob functions of transformers, verl, AReaL and
// torchtitan.
//
// Legend: B sequences, K tokens of one that reach the head, TK = B*K, V vocabulary, C rows of a chunk.
// The multiples of TK*V bytes that each head reaches were executed (docs/training.md); here they follow from who holds what.
#pragma once
#include <oomplan/job.hpp>

#include "layers/eager.hpp"
#include "layers/liger_code.hpp"

namespace oomplan {

struct HeadOptions {
  LossHead head = LossHead::hf_loss;
  bool keep_outputs = false;  ///< the caller keeps the model's output through the backward pass
  std::int64_t vocab = 0;
  int chunks = 1;                  ///< of a chunked head: as many as are simulated
  bool several_sequences = false;  ///< B may be greater than 1
  bool one_branch = false;         ///< the rows are those of a packed tree, taken as one branch
  bool split_vocabulary = false;   ///< the logits are those of one rank's part of it
  bool slice_hidden = false;       ///< the last K tokens of every sequence go on, of a head that takes hidden states
  int weight = -1;                 ///< of the output layer, for such a head: a leaf
  LigerCode liger = {};
  bool copies_shifted = false;           ///< hf_loss: of the logits, without the last token
  Tensor labels = {};                    ///< as the training loop has them
  bool metrics = false;                  ///< TRL: the entropy is computed behind this pass
  std::optional<DType> logged = {};      ///< TRL: format of the logits that the metrics are of; nothing: as these
  std::vector<Tensor>* names = nullptr;  ///< TRL: of the step, which outlive the head
};

/// Rows of a chunk of the head, 0 when it is not chunked. AReaL areal/utils/functional/vocab_parallel.py: 1024; verl
/// verl/utils/torch_functional.py: 2048 of the entropy, one of logprobs_from_logits_v2, 512 of FusedLinearForPPO; AgileRL
/// agilerl/memory/formulas.py resolve_chunk_rows: as many as make 256 MiB of fp32 logits, 128 to 4096.
std::int64_t chunk_rows(LossHead, std::int64_t vocab);
/// The head multiplies with lm_head's weight itself, chunk by chunk: there are no logits of all tokens.
bool takes_hidden(LossHead);
/// Into how many chunks of equal length a head cuts every sequence, 0 when it does not. pytorch/torchtitan
/// torchtitan/components/loss.py, March 2025.
std::int64_t chunks_of_sequence(LossHead);
/// There is a form of it for logits of a part of the vocabulary, which tensor parallelism leaves.
bool splits_vocabulary(LossHead);
/// The head goes through its rows chunk by chunk. Rows of a chunk of liger_fused_ce depend on sizes: liger::fused_head_rows.
bool runs_in_chunks(LossHead);
/// The loss is computed inside the model's forward pass (so the root unit's hooks come behind it).
bool inside_model(LossHead);

/// cross_entropy: log_softmax and nll_loss of logits with one row a token.
Tensor cross_entropy(Eager& g, const Tensor& logits, const Tensor& labels);

/// From logits to the loss. `logits` is the caller's only reference; scope(i) is called before chunk i, scope(-1) behind the
/// last.
Tensor run_head(Eager& g, Tensor logits, const HeadOptions&, const std::function<void(int)>& scope);
/// The same from the last hidden states [B, S, H]. REQUIRES: takes_hidden(head); autocast is off unless
/// inside_model(head).
Tensor run_hidden_head(Eager& g, Tensor hidden, const HeadOptions&, const std::function<void(int)>& scope);

}  // namespace oomplan
