// A matrix product in 8 bits with blocks of 128, as AReaL's Archon has it (areal/experimental/models/archon/fp8.py, 1.0.4 and the
// development after 2.0.0): torchao's fp8_blockwise_mm (torchao/prototype/blockwise_fp8_training/linear.py, 0.15.0).
#pragma once
#include <utility>

#include "layers/eager.hpp"

namespace oomplan {

inline constexpr std::int64_t kFp8Block = 128;

/// A matrix without a bias whose sides are whole blocks (_is_eligible).
bool takes_blocks(const Leaf& weight, bool biased);

/// x times the transposed weight. Both are kept as they came; what is in 8 bits goes with the call.
Tensor blockwise_linear(Eager& g, const Tensor& x, const Tensor& w, const Dim& rows, Shape out_shape, const std::string& name);

/// Matrices inside of it are multiplied so, those that take blocks.
class BlockwiseGuard {
 public:
  BlockwiseGuard(Eager& g, bool on) : g_(g), before_(std::exchange(g.blockwise, on)) {}
  ~BlockwiseGuard() { g_.blockwise = before_; }
  BlockwiseGuard(const BlockwiseGuard&) = delete;
  BlockwiseGuard& operator=(const BlockwiseGuard&) = delete;

 private:
  Eager& g_;
  bool before_;
};

}  // namespace oomplan
