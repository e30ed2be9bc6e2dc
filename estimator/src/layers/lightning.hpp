// MiniMax-Text-01's lightning attention (transformers, models/minimax/modeling_minimax.py, 5.23.0): blocks of tokens, one after
// another, with a state between them.
#pragma once
#include "layers/kernels.hpp"

namespace oomplan {

/// MiniMaxLightningAttention.forward; `weights` are the state that it returns.
/// REQUIRES: KernelOptions::scan_tokens is the number of tokens of a sequence.
Attended run_lightning(Eager& g, const Mixer&, std::int64_t hidden, const LayerLeaves&, const KernelOptions&, const Tensor& x);

/// Decays that every such layer has as buffers in `dtype`, whole on every rank.
Bytes lightning_buffers(const Architecture&, DType dtype);

}  // namespace oomplan
