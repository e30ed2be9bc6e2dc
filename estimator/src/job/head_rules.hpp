// What TRL's losses, a reference beside them and a reward model's head can be combined with.
#pragma once
#include <vector>

#include "job/litgpt_rules.hpp"

namespace oomplan {

/// The head goes through its sequences one by one: a chunk is one of them.
bool takes_sequences(LossHead);
/// The batch is pairs, chosen and rejected; names of the step hold the logits until the backward pass begins.
bool is_preference(LossHead);
/// Every knob that does not go with the head of this trainer.
std::vector<Clash> head_clashes(const Role&);

}  // namespace oomplan
