// The two checkpoints of Megatron-core's selective recomputation.
//
// megatron-core 0.16.1, megatron/core/tensor_parallel/random.py: CheckpointFunction over several tensors, and
// CheckpointWithoutOutput, whose results go once they have been used and come back when the gradient of what was made of them is
// there.
#pragma once
#include <functional>
#include <memory>
#include <vector>

#include "layers/eager.hpp"

namespace oomplan {

/// What runs again: it must hold no tensor of the forward pass.
using Recomputed = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

/// tensor_parallel.checkpoint: keeps the inputs; `body` gives one tensor.
Tensor checkpoint_several(Eager&, const std::vector<Tensor>& inputs, Recomputed body);

/// CheckpointWithoutOutput.
class DiscardedOutputs {
 public:
  /// checkpoint(): runs without a graph and keeps the inputs.
  std::vector<Tensor> run(Eager&, const std::vector<Tensor>& inputs, Recomputed body);
  /// discard_output_and_register_recompute(): the results' bytes go; in front of the node that made `hook` they are computed
  /// again, beside the blocks that they are copied into. REQUIRES: run() was called.
  void discard(const Tensor& hook);

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace oomplan
