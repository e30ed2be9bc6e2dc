// DBRX's feed-forward block (transformers, models/dbrx/modeling_dbrx.py, 5.23.0): a loop over experts whose matrices are rows of
// three stacks.
#pragma once
#include "layers/decoder.hpp"

namespace oomplan {

/// DbrxFFN.forward; x is held by the caller. `tokens`: of the micro-batch, which the experts divide evenly.
Tensor run_dbrx_experts(Eager& g, const FeedForward&, Dim hidden, const Tensor& x, const LayerLeaves&, std::int64_t tokens);

}  // namespace oomplan
