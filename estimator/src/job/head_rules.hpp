// What TRL's losses, a reference beside them and a reward model's head can be combined with.
#pragma once
#include <vector>

#include "job/litgpt_rules.hpp"

namespace oomplan {

/// TRL's heads of padded sequences.
bool takes_sequences(LossHead);
/// transformers' loss with the metrics of TRL's SFTTrainer behind it.
bool is_trl_sft(LossHead);
/// The head goes through its sequences one by one, as those do: a chunk is one of them.
bool goes_by_sequence(LossHead);
/// The batch is pairs, chosen and rejected; names of the step hold the logits until the backward pass begins.
bool is_preference(LossHead);
/// Of any release.
bool is_dpo(LossHead);
bool is_kto(LossHead);
bool is_grpo(LossHead);
/// verl's output layers that make log-probs from hidden states (use_fused_kernels).
bool is_verl_fused(LossHead);
/// Every knob that does not go with the head of this trainer.
std::vector<Clash> head_clashes(const Role&);

}  // namespace oomplan
