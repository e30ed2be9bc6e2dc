// LFM2's short convolution in the place of attention (transformers, models/lfm2/modeling_lfm2.py, 5.23.0).
#pragma once
#include "layers/decoder.hpp"

namespace oomplan {

/// Lfm2ShortConv.forward without causal-conv1d's kernel; x is held by the caller.
/// REQUIRES: KernelOptions::scan_tokens is the number of tokens of a sequence.
Tensor run_short_conv(Eager& g, const Mixer&, std::int64_t hidden, const LayerLeaves&, const KernelOptions&, const Tensor& x);

}  // namespace oomplan
