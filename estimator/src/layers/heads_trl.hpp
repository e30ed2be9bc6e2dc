// Losses of TRL's trainers on whole sequences: log-probs of one sequence after another (huggingface/trl trl/trainer/utils.py
// selective_log_softmax, 1.12), and what DPO, SimPO, ORPO, GRPO and reward models put around them.
//
// Legend: B sequences (a preference loss: the chosen ones, then as many rejected ones), K tokens of one that have logits,
// C = K - 1 of them that have a next token, V vocabulary, M rows of an entropy that are looked at together (128), or half
// of the sequences: ORPO's chosen, KTO's desirable ones.
#pragma once
#include "job/head_rules.hpp"
#include "layers/heads_verl.hpp"

namespace oomplan {

/// What M stands for, of `sequences` with `rows` each.
std::int64_t rows_together(LossHead, std::int64_t sequences, std::int64_t rows);

struct TrlStep {
  bool several_sequences = false;
  bool metrics = false;                  ///< the entropy of the logits, as a number to be logged
  std::optional<DType> logged = {};      ///< format of these logits; nothing: as those of the pass
  std::vector<Tensor>* names = nullptr;  ///< of the step, which outlive the function
};
/// What SFTTrainer makes of the model's logits [B, K, V] behind its loss (trl/trainer/sft_trainer.py compute_loss): the entropy,
/// 128 rows at a time, then a copy of several sequences' logits without the last token, for the accuracy. `twice` (1.3 to 1.5):
/// the entropy is that of such a copy, too, whose name stays until the next one is there.
void sft_metrics(Eager& g, const Tensor& logits, bool several, bool twice, std::int64_t vocab);
/// From logits [B, K, V], which the caller holds, to one number a token [B, C]. REQUIRES: takes_sequences(head).
Tensor trl_objective(Eager& g, const Tensor& logits, LossHead head, const TrlStep&, const HeadChunks&);

/// GKD's and GOLD's loss (trl/experimental/gkd/gkd_trainer.py generalized_jsd_loss, 1.4, with 0 < beta < 1) of the policy's
/// logits and of a teacher's, both [B, K, V] and held by the caller: what is not cut off has C tokens of a sequence. All of them
/// are taken as completions.
Tensor teacher_divergence(Eager& g, const Tensor& logits, const Tensor& teacher, std::int64_t vocab);

/// log_softmax and gather of one sequence of [B, C, V] after another: one number a token [B, C], in the format of the logits.
Tensor log_probs_by_sequence(Eager& g, const Tensor& logits, const HeadChunks&);

/// What KTO's step makes of logits [B, K, V] to log their means (trl/trainer/kto_trainer.py _compute_loss, 1.12): a copy of the
/// desirable completions' and one of the others', which are names until it returns, and for a moment the rows that belong to a
/// completion, of the ones and then of the others. Half of the sequences are taken as desirable.
std::vector<Tensor> kto_copies(Eager& g, const Tensor& logits, std::int64_t vocab);
/// Stands for logits of that shape in another format, which are alive already; nothing: for these.
Tensor logged_as(const Tensor& logits, std::optional<DType> format);
/// The same up to 1.5 (trl/experimental/kto/kto_trainer.py forward): with the last token, and no rows besides.
std::vector<Tensor> kto_halves(Eager& g, const Tensor& logits, std::int64_t vocab);
/// What DPO's step makes of logits for a moment to log them: of 0.29 to 1.5 the entropy and the shifted logits of the chosen
/// half, of 0.18 to 0.28 those of the chosen and of the rejected half.
void dpo_metrics(Eager& g, const Tensor& logits, LossHead head, std::int64_t vocab);

/// From [B, K, 1] to the value of each sequence's last token (transformers modeling_layers.py GenericForSequenceClassification).
Tensor last_tokens(Eager& g, const Tensor& scores);

}  // namespace oomplan
