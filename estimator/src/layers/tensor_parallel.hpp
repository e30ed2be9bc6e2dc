// Tensor parallelism by DTensor (ColwiseParallel, RowwiseParallel, SequenceParallel): torch/distributed/tensor/parallel/style.py
// and torch/distributed/tensor/_redistribute.py, 2.13, as AReaL (areal/engine/fsdp_utils/parallel.py, 1.0) and torchtitan
// (torchtitan/models/llama3/infra/parallelize.py, 0.2) plan it.
//
// Between the halves of a layer a rank has its part of the tokens, inside of them all tokens and its part of the heads or of the
// feed-forward width. A half begins with an all-gather of the tokens and ends with a reduce-scatter of its partial sums.
//
// Legend: t ranks, S tokens of a sequence on one rank, B sequences, H hidden.
#pragma once
#include <string>
#include <utility>

#include "catalog/architecture.hpp"
#include "layers/decoder.hpp"
#include "layers/families.hpp"

namespace oomplan {

/// What is DTensor business from here on, or is not: autograd adds gradients of DTensors out of place.
class DistributedGuard {
 public:
  DistributedGuard(Eager& g, bool distributed) : g_(g), before_(std::exchange(g.distributed, distributed)) {}
  DistributedGuard(const DistributedGuard&) = delete;
  DistributedGuard& operator=(const DistributedGuard&) = delete;
  ~DistributedGuard() { g_.distributed = before_; }

 private:
  Eager& g_;
  bool before_;
};

/// The model as one of `ranks` holds it: heads, feed-forward width and vocabulary divided, the first rank's part where they do
/// not divide.
Architecture part_of(const Architecture&, std::int64_t ranks);

/// [B, S, H] -> [B, t S, H]; backward: a reduce-scatter of the gradients. x itself on one rank.
Tensor gather_tokens(Eager&, const Tensor& x, const KernelOptions&, const std::string& name);
/// Partial sums [B, t S, H] -> sums [B, S, H]; backward: an all-gather. x itself on one rank.
Tensor reduce_tokens(Eager&, Tensor x, const KernelOptions&, const std::string& name);

/// Why the layer cannot be split; "" when it can, or is not.
std::string unsupported_split(const FamilyCode&, const Layer&, const KernelOptions&);

}  // namespace oomplan
