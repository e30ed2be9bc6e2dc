// Which functions run a gated delta rule and the convolution in front of it.
#pragma once
#include <cstdint>

#include <oomplan/job.hpp>

namespace oomplan {

struct DeltaOptions {
  LinearAttention kernels = LinearAttention::torch;
  /// Tokens of each sequence of a packed row whose layers are told where sequences begin (cu_seqlens); the last one has what is
  /// left. 0: a row is one sequence.
  std::int64_t sequence = 0;
  bool patched = false;  ///< verl's forward pass of Qwen3.5: what goes into causal-conv1d's convolution has a name of its own
  bool told_nothing = false;         ///< verl with other models: under Ulysses a layer takes its rank's tokens for a row
  std::int64_t multiprocessors = 1;  ///< of the GPU
  bool operator==(const DeltaOptions&) const = default;
};

}  // namespace oomplan
