// The experts of a layer by themselves: Liger's fused kernels, and transformers' loop over experts.
#pragma once
#include "layers/operators_setup.hpp"

namespace oomplan {

/// Sizes tokens, hidden, width, experts, top_k, from_leaves. Tokens are spread evenly over the experts.
OperatorSetup::Forward fused_moe_operator(const OperatorSetup&);

}  // namespace oomplan
