// Losses of TRL's trainers on whole sequences: log-probs of one sequence after another (huggingface/trl trl/trainer/utils.py
// selective_log_softmax, 1.12), and what DPO, SimPO, ORPO, GRPO and reward models put around them.
//
// Legend: B sequences (a preference loss: the chosen ones, then as many rejected ones), K tokens of one that have logits,
// C = K - 1 of them that have a next token, V vocabulary, M rows of an entropy that are looked at together (128), or ORPO's
// chosen sequences.
#pragma once
#include "job/head_rules.hpp"
#include "layers/heads_verl.hpp"

namespace oomplan {

/// What M stands for, of `sequences` with `rows` each.
std::int64_t rows_together(LossHead, std::int64_t sequences, std::int64_t rows);

struct TrlStep {
  bool several_sequences = false;
  bool metrics = false;  ///< the entropy of the logits, as a number to be logged
};
/// From logits [B, K, V], which the caller holds, to one number a token [B, C]. REQUIRES: takes_sequences(head).
Tensor trl_objective(Eager& g, const Tensor& logits, LossHead head, const TrlStep&, const HeadChunks&);

/// From [B, K, 1] to the value of each sequence's last token (transformers modeling_layers.py GenericForSequenceClassification).
Tensor last_tokens(Eager& g, const Tensor& scores);

}  // namespace oomplan
