#include "training/megatron_schedule.hpp"

#include <algorithm>

namespace oomplan {

std::int64_t played_micro_batches(std::int64_t micro_batches, std::int64_t stages, std::int64_t chunks, std::int64_t group) {
  if (stages == 1) return std::min<std::int64_t>(micro_batches, 3);
  const std::int64_t together = std::max(group, stages), most = (chunks + 3) * together;
  return micro_batches <= most ? micro_batches : most + (micro_batches - most) % together;
}

std::vector<VirtualBatch> interleaved_order(std::int64_t micro_batches, std::int64_t chunks, std::int64_t group) {
  std::vector<VirtualBatch> out;
  for (std::int64_t first = 0; first < micro_batches; first += group)
    for (std::int64_t c = 0; c < chunks; ++c)
      for (std::int64_t m = first; m < std::min(first + group, micro_batches); ++m) out.push_back({m, c});
  return out;
}

}  // namespace oomplan
