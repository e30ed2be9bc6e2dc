// What mixers with a state share: the causal convolution over tokens, and the rates that A_log states.
#pragma once
#include <vector>

#include "layers/eager.hpp"

namespace oomplan {

struct CausalConv {
  int weight = -1, bias = -1;
  Dim channels;
  std::int64_t taps = 0;
  std::int64_t tokens = 0;  ///< of one sequence
};
/// causal_conv1d_fn without causal-conv1d's kernel: a padded convolution, cut to the tokens, and silu. x lies by token or by
/// channel; the result is [B, channels, S].
Tensor causal_conv(Eager& g, const Tensor& x, const CausalConv&);

/// The same of a packed row [B, channels, tokens], sequence by sequence (verl/models/transformers/qwen3_5.py
/// _packed_causal_conv1d_fallback, 0.9 and 0.10).
Tensor causal_conv_by_sequence(Eager& g, const Tensor& x, const CausalConv&, const std::vector<std::int64_t>& lengths);

/// -exp(A_log.float())
Tensor negative_rate(Eager& g, int a_log);

}  // namespace oomplan
