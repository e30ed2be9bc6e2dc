// Megatron-FSDP: what a rank holds of its parameters, in which buckets, and what is gathered and reduced together.
//
// megatron-core 0.16.1, megatron/core/distributed/fsdp/src/megatron_fsdp/param_and_grad_buffer.py: _get_parameter_groups,
// build_data_parallel_buffer_index, FixedPoolAllocator; megatron_fsdp.py: _init_fsdp_param_and_grad_buffer.
#pragma once
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <oomplan/job.hpp>

#include "catalog/architecture.hpp"
#include "layers/megatron.hpp"

namespace oomplan {

/// A module with parameters of its own, of which the gradients come together.
enum class FsdpModule : std::uint8_t { embedding, positions, proj, qkv, fc1, fc2, norm, head };
inline constexpr std::int64_t kOutsideLayers = -1;
/// Of which layer it is one, or kOutsideLayers.
using FsdpPlace = std::pair<std::int64_t, FsdpModule>;

struct FsdpBucket {
  std::int64_t elements = 0;             ///< padded, so that the ranks can split it
  std::int64_t shard = 0;                ///< of one rank
  std::int64_t own = 0;                  ///< elements of its parameters
  std::int64_t unit = -1;                ///< layer that it is of; -1: of none
  std::vector<std::int64_t> parameters;  ///< elements of each
  std::vector<std::int64_t> parts;       ///< of each the part that the first rank updates; none is empty
  std::int64_t modules = 0;              ///< that give gradients for it
};

struct MegatronFsdpPlan {
  MegatronFsdpStrategy strategy = MegatronFsdpStrategy::off;
  bool splits_weights = false, splits_gradients = false, splits_masters = false;
  bool reduces_in_backward = true;  ///< gradients that are not split: behind the last micro-batch's modules
  bool double_buffer = false;
  bool computes_again = false;  ///< layers as a whole
  bool from_meta = false;       ///< the model is made on the meta device, and materialised module by module
  bool tied = false;            ///< the embedding's matrix is the output layer's: its gradient is there when both parts are
  DType reduce = DType::fp32;
  std::int64_t prefetch = 0;  ///< elements that are gathered ahead
  std::int64_t queue = 0;     ///< elements of gradients that wait to be reduced
  std::vector<FsdpBucket> buckets;
  std::map<FsdpPlace, std::vector<int>> of;  ///< the buckets of a module's parameters
  std::vector<bool> pooled;                  ///< of each bucket: it is one of the alike units that the double buffer is for
};

/// REQUIRES: dense layers with plain attention, and a chunk that is the whole model.
MegatronFsdpPlan make_megatron_fsdp_plan(const Architecture&, const Trainer&, const ChunkOptions&);

}  // namespace oomplan
