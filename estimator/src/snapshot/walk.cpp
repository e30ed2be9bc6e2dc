#include "snapshot/walk.hpp"

#include <algorithm>
#include <map>
#include <tuple>

namespace oomplan::snapshot {

Walk::Walk(const Snapshot& snapshot, const Start& start, const Comparison& replayed, int device)
    : trace_(snapshot.traces[static_cast<std::size_t>(device)]), sizes_(replayed.sizes), reserved_(start.reserved) {
  for (const auto& [address, block] : start.blocks) put(address, {block.size, block.requested, block.stack, block.stack == 0});
  for (const auto& segment : snapshot.segments)
    if (segment.device == device)
      for (const auto& block : segment.blocks)
        if (block.state != BlockState::inactive) final_.emplace(block.address, std::pair(block.size, block.requested));
}

void Walk::play(std::size_t i) {
  const Event& e = trace_[i];
  switch (e.action) {
    case Action::alloc:
      put(e.address, {size_of(i), e.bytes, e.stack, false});
      break;
    case Action::free_requested:  // what another stream still uses is no longer counted as allocated
      take(e.address);
      break;
    case Action::free_completed:
      take(e.address);
      break;
    case Action::segment_alloc:
    case Action::segment_map:
      reserved_ += e.bytes;
      break;
    case Action::segment_free:
    case Action::segment_unmap:
      reserved_ -= e.bytes;
      break;
    default:
      break;
  }
}

Bytes Walk::size_of(std::size_t i) const {
  if (i < sizes_.size() && sizes_[i] > 0) return sizes_[i];
  const auto last = final_.find(trace_[i].address);
  if (last != final_.end() && last->second.second == trace_[i].bytes) return last->second.first;
  return rounded_request(trace_[i].bytes);
}

void Walk::put(Bytes address, const LiveBlock& block) {
  take(address);
  live_.emplace(address, block);
  allocated_ += block.bytes;
}

void Walk::take(Bytes address) {
  const auto found = live_.find(address);
  if (found == live_.end()) return;
  allocated_ -= found->second.bytes;
  live_.erase(found);
}

std::vector<LiveRow> rows_of(const Live& live) {
  std::map<std::tuple<Bytes, Bytes, StackId, bool>, std::int64_t> counts;
  for (const auto& [address, block] : live) ++counts[{block.bytes, block.requested, block.stack, block.before}];
  std::vector<LiveRow> rows;
  for (const auto& [key, count] : counts)
    rows.push_back({std::get<0>(key), count, std::get<2>(key), std::get<3>(key), std::get<1>(key)});
  std::stable_sort(rows.begin(), rows.end(), [](const LiveRow& a, const LiveRow& b) {
    return std::pair(a.total(), a.bytes) > std::pair(b.total(), b.bytes);
  });
  return rows;
}

}  // namespace oomplan::snapshot
