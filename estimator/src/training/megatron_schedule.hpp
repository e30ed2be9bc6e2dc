// Pipeline schedules of Megatron-core as lists of passes: megatron/core/pipeline_parallel/schedules.py, 0.16.1.
#pragma once
#include <cstdint>
#include <vector>

namespace oomplan {

/// How many of `micro_batches` have to be played for every level to occur: the steady part repeats.
std::int64_t played_micro_batches(std::int64_t micro_batches, std::int64_t stages, std::int64_t chunks, std::int64_t group = 0);

/// A chunk's pass in the order of the interleaved schedule.
struct VirtualBatch {
  std::int64_t micro = 0, chunk = 0;
};
/// get_schedule_table: groups of `group` micro-batches go through all chunks one after another.
std::vector<VirtualBatch> interleaved_order(std::int64_t micro_batches, std::int64_t chunks, std::int64_t group);

}  // namespace oomplan
