// Mamba: a state space whose parameters depend on the token, scanned one token after another.
#pragma once
#include "layers/decoder.hpp"
#include "layers/families.hpp"

namespace oomplan {

/// MambaMixer.forward with transformers' own functions in place of mamba_ssm's and causal-conv1d's kernels; x is its input, held
/// by the caller.
/// REQUIRES: KernelOptions::scan_tokens is the number of tokens of a sequence.
Tensor run_mamba(Eager& g, const FamilyCode&, const Mixer&, std::int64_t hidden, const LayerLeaves&, const KernelOptions&,
                 const Tensor& x);

}  // namespace oomplan
