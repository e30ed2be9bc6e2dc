#include "snapshot/start.hpp"

#include <algorithm>

namespace oomplan::snapshot {
namespace {

void undo(Start& start, const std::vector<Event>& trace) {
  Bytes change = 0, lowest = 0;
  for (const Event& e : trace) {
    if (e.action == Action::segment_alloc || e.action == Action::segment_map) change += e.bytes;
    if (e.action == Action::segment_free || e.action == Action::segment_unmap) change -= e.bytes;
    lowest = std::min(lowest, change);
    start.expandable |= e.action == Action::segment_map || e.action == Action::segment_unmap;
  }
  start.reserved = std::max(start.reserved - change, -lowest);
  for (auto e = trace.rbegin(); e != trace.rend(); ++e) {
    switch (e->action) {
      case Action::alloc:
        start.unmatched += start.blocks.erase(e->address) == 0;
        break;
      case Action::free_completed:
        start.blocks[e->address] = {0, e->bytes, 0};
        break;
      case Action::segment_alloc:
        start.segments.erase(e->address);
        break;
      case Action::segment_free:
        start.segments[e->address] = {e->bytes, e->stream, e->bytes == 2 * kMiB, {0, 0}};
        break;
      default:
        break;
    }
  }
}

/// Allocations and frees by address, in the order of the trace.
using ByAddress = std::map<Bytes, std::vector<std::size_t>>;

/// Where the block at `address` ends: the first allocation within 1 MiB behind `end` that comes before its free.
Bytes marked_end(const std::vector<Event>& trace, const ByAddress& at, Bytes address, Bytes end) {
  std::size_t freed = trace.size();
  if (const auto own = at.find(address); own != at.end())
    for (const std::size_t i : own->second)
      if (trace[i].action == Action::free_requested || trace[i].action == Action::free_completed) {
        freed = i;
        break;
      }
  std::size_t first = freed;
  Bytes found = end;
  for (auto other = at.lower_bound(end); other != at.end() && other->first <= end + kMiB; ++other)
    for (const std::size_t i : other->second) {
      if (i >= first) break;
      if (trace[i].action != Action::alloc) continue;
      first = i;
      found = other->first;
      break;
    }
  return found;
}

void fill_sizes(Start& start, const std::vector<Event>& trace) {
  ByAddress at;
  for (std::size_t i = 0; i < trace.size(); ++i)
    if (trace[i].action <= Action::free_completed) at[trace[i].address].push_back(i);
  for (const auto& [begin, segment] : start.segments) {
    const Bytes segment_end = begin + segment.bytes;
    for (auto block = start.blocks.lower_bound(begin); block != start.blocks.end() && block->first < segment_end; ++block) {
      if (block->second.size > 0) continue;
      const auto next = std::next(block);
      const Bytes after = next == start.blocks.end() ? segment_end : std::min(segment_end, next->first);
      Bytes end = block->first + rounded_request(block->second.requested);
      const Bytes gap = after - end;
      if (!segment.small && gap > kMiB)
        end = marked_end(trace, at, block->first, end);
      else if (!segment.small && gap > 0)
        end = after;
      block->second.size = end - block->first;
    }
  }
  for (auto& [address, block] : start.blocks)
    if (block.size <= 0) block.size = rounded_request(block.requested);
}

}  // namespace

Start start_of(const Snapshot& snapshot, int device) {
  Start start;
  for (const auto& segment : snapshot.segments) {
    if (segment.device != device) continue;
    start.reserved += segment.bytes;
    start.expandable |= segment.expandable;
    if (!segment.expandable) start.segments[segment.address] = {segment.bytes, segment.stream, segment.small, segment.pool};
    for (const auto& block : segment.blocks)
      if (block.state != BlockState::inactive) start.blocks[block.address] = {block.size, block.requested, block.stack};
  }
  static const std::vector<Event> kNothing;
  const auto& trace = snapshot.has_history(device) ? snapshot.traces[static_cast<std::size_t>(device)] : kNothing;
  undo(start, trace);
  fill_sizes(start, trace);
  return start;
}

}  // namespace oomplan::snapshot
