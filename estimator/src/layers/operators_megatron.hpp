// Operators of Megatron-Core's layout by themselves, as Liger-Kernel's scripts call them: the input's gradient goes at the start
// of each call, the loss is the sum of what comes out.
#pragma once
#include "layers/operators_setup.hpp"

namespace oomplan {

/// Sizes tokens, width: silu(gate) * up of one tensor [tokens, 2 width].
OperatorSetup::Forward gated_activation_operator(const OperatorSetup&);
/// Sizes tokens, vocab: losses of logits on one rank of a vocabulary's part.
OperatorSetup::Forward vocab_parallel_loss_operator(const OperatorSetup&);

}  // namespace oomplan
