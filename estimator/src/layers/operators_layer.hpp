// Pieces of a layer that have two outputs, by themselves: rotary positions, and a residual's sum with the norm behind it.
#pragma once
#include "layers/operators_setup.hpp"

namespace oomplan {

/// Sizes tokens, hidden, heads, key_heads. Gradients go to the caller and are gone when it returns.
OperatorSetup::Forward rope_operator(const OperatorSetup&);
/// Sizes tokens, hidden.
OperatorSetup::Forward add_rms_norm_operator(const OperatorSetup&);

}  // namespace oomplan
