// The gated delta rule of Qwen3-Next and Qwen3.5: linear attention with a state for each head, in chunks of 64 tokens.
#pragma once
#include <vector>

#include "layers/attention.hpp"

namespace oomplan {

/// Qwen3NextGatedDeltaNet.forward with transformers' own functions in place of flash-linear-attention's and causal-conv1d's
/// kernels; x is its input, held by the caller.
/// REQUIRES: KernelOptions::scan_tokens is the number of tokens of a sequence.
Tensor run_gated_delta(Eager& g, const Mixer&, std::int64_t hidden, const LayerLeaves&, const KernelOptions&, const Tensor& x);

/// A row of flash-linear-attention's functions, with the chunks of 64 tokens that its sequences have.
struct FlaRow {
  Dim tokens = axis::S;
  std::int64_t chunks = 0, multiprocessors = 1;
};
/// The same forward pass on flash-linear-attention's modules, the short convolution too, as slime's models have it.
Tensor run_gated_delta_by_fla(Eager& g, const Mixer&, std::int64_t hidden, const LayerLeaves&, const FlaRow&, const Tensor& x);

/// What flash-linear-attention keeps of a packed row's ends for all layers (fla/utils.py tensor_cache, 0.5.0): the chunks, and
/// for causal-conv1d whose every token is.
std::vector<Tensor> delta_caches(Eager& g, const KernelOptions&);

}  // namespace oomplan
