#include "estimate/expert_shards.hpp"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "units/sizes.hpp"

namespace oomplan {

std::string expert_room(const Role& role, const TrainPlan& plan, const Tape& tape) {
  if (!shards_by_fsdp2(role.engine) || plan.ranks == 1) return {};
  std::vector<std::int64_t> added(tape.stations.size());  // elements of a unit
  std::int64_t experts = 0, room = 0;
  for (const TapeLeaf& leaf : tape.leaves) {
    constexpr std::size_t kAxesOfAStack = 3;  // a convolution's weight has as many
    const bool stack = leaf.shape.size() == kAxesOfAStack && leaf.name.find("experts.") != std::string::npos;
    if (!stack || tape.stations[leaf.station].place != StationPlace::layers) continue;
    const std::int64_t rows = rows_of_shard(leaf, plan.ranks, plan.base_whole) * plan.ranks;
    if (rows == leaf.shape[0]) continue;
    added[leaf.station] += (rows - leaf.shape[0]) * (leaf.elements() / leaf.shape[0]);
    experts = leaf.shape[0];
    room = rows;
  }
  const std::int64_t most = added.empty() ? 0 : *std::max_element(added.begin(), added.end());
  if (most == 0) return {};
  return fmt::format(
      "{}: FSDP2 splits a layer's {} experts over {} ranks by expert, so that its gathered buffer has room for {}: {} "
      "more than the layer's parameters",
      role.name, experts, plan.ranks, room, bytes_text(bytes_of(most, role.trainer.compute)));
}

}  // namespace oomplan
