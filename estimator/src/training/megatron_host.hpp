// Megatron-core's optimizer on the host: which parameters of a rank's share go there, and what that takes on both sides.
//
// megatron-core 0.16.1, megatron/core/optimizer/cpu_offloading/hybrid_optimizer.py (HybridDeviceOptimizer),
// optimizer/distrib_optimizer.py, distributed/param_and_grad_buffer.py.
#pragma once
#include <vector>

#include "training/megatron_plan.hpp"

namespace oomplan {

/// What a rank's share leaves on the GPU and puts on the host.
struct HostShare {
  std::int64_t kept = 0, offloaded = 0;              ///< numbers of the share
  std::int64_t whole_kept = 0, whole_offloaded = 0;  ///< the same of whole parameters: the optimizer is first made of those
  std::int64_t largest = 0, largest_kept = 0;        ///< of one parameter
  Bytes pinned = 0;  ///< gradients on the host, in blocks of pinned memory, which are powers of two
};

/// Of every rank that shares `chunks` (their tensors in the model's order): buffers are cut into buckets, those into equal parts.
/// `buckets`: of each chunk how many numbers make a bucket at least; 0: its buffer is one.
std::vector<HostShare> host_shares(const std::vector<std::vector<MegatronTensor>>& chunks,
                                   const std::vector<std::int64_t>& buckets, std::int64_t ranks, double fraction);

/// The rank that keeps most on the GPU; what lies on the host is that of the mean of all.
HostShare fullest_share(const std::vector<HostShare>&);

}  // namespace oomplan
