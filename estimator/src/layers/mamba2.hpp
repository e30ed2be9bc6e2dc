// Mamba-2: a state space with one decay for each head, scanned in chunks.
#pragma once
#include "layers/decoder.hpp"
#include "layers/families.hpp"

namespace oomplan {

/// Mamba2Mixer.forward with transformers' own functions in place of mamba_ssm's and causal-conv1d's kernels; x is its input, held
/// by the caller.
/// REQUIRES: KernelOptions::scan_tokens is the number of tokens of a sequence.
Tensor run_mamba2(Eager& g, const FamilyCode&, const Mixer&, std::int64_t hidden, const LayerLeaves&, const KernelOptions&,
                  const Tensor& x);

}  // namespace oomplan
