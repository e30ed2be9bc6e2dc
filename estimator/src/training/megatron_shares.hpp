// Which parts of which parameters a rank of Megatron-core's distributed optimizer has.
//
// megatron-core 0.16.1, megatron/core/distributed/param_and_grad_buffer.py, optimizer/distrib_optimizer.py.
#pragma once
#include <vector>

#include "training/megatron_plan.hpp"

namespace oomplan {

/// A parameter's part in a rank's share.
struct MegatronPart {
  std::int64_t elements = 0;
  bool decays = true;
};
using MegatronParts = std::vector<MegatronPart>;

/// Of every rank that shares `chunks` (their tensors in the model's order): buffers are cut into buckets, those into equal parts.
/// `buckets`: of each chunk how many numbers make a bucket at least; 0: its buffer is one.
std::vector<MegatronParts> parts_of_ranks(const std::vector<std::vector<MegatronTensor>>& chunks,
                                          const std::vector<std::int64_t>& buckets, std::int64_t ranks);

/// DistributedDataParallel: several buckets on the first stage's first chunk, where gradients are reduced while others are made.
std::vector<std::int64_t> bucket_sizes(std::size_t chunks, const Trainer&, std::int64_t stage);

/// The parts of the rank that has most of the dense parameters, and of the one with most of the experts: equal ones together.
std::vector<MegatronPiece> fullest_pieces(const MegatronParameters&, const std::vector<std::int64_t>& buckets,
                                          std::int64_t dense_ranks, std::int64_t expert_ranks);

/// What slime's StatelessAdam.step has at once: the last parameter's denominator beside two forms of the next one's, and with
/// plain Adam its gradient with the decay added (THUDM/slime 624b824a, slime/backends/megatron_utils/stateless_adam.py).
Bytes held_by_stateless_steps(const MegatronParameters&, const std::vector<std::int64_t>& buckets, std::int64_t dense_ranks,
                              std::int64_t expert_ranks, bool adds_decay);

}  // namespace oomplan
