// Losses of preference and distillation behind an output layer: Liger's chunked ones and what its tests compare them with.
//
// Legend: B sequences, S tokens of one, T = B * S, H width, V vocabulary.
#pragma once
#include "layers/operators_setup.hpp"

namespace oomplan {

/// Sizes sequences, tokens (of one), hidden, vocab, nll: pairs of chosen and rejected sequences (CPO, SimPO, ORPO).
OperatorSetup::Forward preference_operator(const OperatorSetup&);
/// Sizes sequences, tokens, hidden, vocab: GRPO with a reference model's output layer.
OperatorSetup::Forward grpo_operator(const OperatorSetup&);
/// Sizes tokens, hidden, vocab: the generalised Jensen-Shannon divergence of a student's and a teacher's output layer.
OperatorSetup::Forward jsd_operator(const OperatorSetup&);

}  // namespace oomplan
