#include "snapshot/history.hpp"

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "snapshot/walk.hpp"

namespace oomplan::snapshot {
namespace {

void add(Now& now, const Segment& segment) {
  ++now.segments;
  now.expandable_segments += segment.expandable;
  now.small_segments += segment.small;
  now.reserved += segment.bytes;
  now.blocks += static_cast<std::int64_t>(segment.blocks.size());
  Bytes free = 0;
  for (const auto& block : segment.blocks) {
    if (block.state == BlockState::active) {
      now.allocated += block.size;
      now.requested += block.requested;
    } else if (block.state == BlockState::pending) {
      now.pending += block.size;
    } else {
      free += block.size;
      now.largest_free = std::max(now.largest_free, block.size);
    }
  }
  now.free += free;
  (free == segment.bytes ? now.releasable : now.inactive_split) += free;
}

void walk_history(DeviceHistory& out, const Snapshot& snapshot, const Start& start) {
  const auto& trace = snapshot.traces[static_cast<std::size_t>(out.device)];
  out.events = static_cast<std::int64_t>(trace.size());
  out.first_time = trace.front().time;
  out.last_time = trace.back().time;
  Walk walk(snapshot, start, out.comparison, out.device);
  out.allocated_peak = out.reserved_peak = {walk.allocated(), walk.reserved(), -1};
  for (std::size_t i = 0; i < trace.size(); ++i) {
    walk.play(i);
    const Peak level{walk.allocated(), walk.reserved(), static_cast<std::int64_t>(i)};
    if (level.allocated > out.allocated_peak.allocated) out.allocated_peak = level;
    if (level.reserved > out.reserved_peak.reserved) out.reserved_peak = level;
    if (trace[i].action == Action::oom)
      out.ooms.push_back({level.event, trace[i].bytes, trace[i].address, level.allocated, level.reserved, trace[i].stack});
  }
  Walk again(snapshot, start, out.comparison, out.device);
  for (std::int64_t i = 0; i <= out.allocated_peak.event; ++i) again.play(static_cast<std::size_t>(i));
  out.live = rows_of(again.live());
}

bool is_python(const Frame& frame) { return frame.file.ends_with(".py") || frame.file.ends_with(".ipynb"); }
bool is_torch(const Frame& frame) {
  return frame.file.find("/torch/") != std::string::npos || frame.file.find("\\torch\\") != std::string::npos;
}

}  // namespace

DeviceHistory history_of(const Snapshot& snapshot, int device) {
  DeviceHistory out;
  out.device = device;
  Live live;
  for (const auto& segment : snapshot.segments) {
    if (segment.device != device) continue;
    add(out.now, segment);
    for (const auto& block : segment.blocks)
      if (block.state == BlockState::active)
        live.emplace(block.address, LiveBlock{block.size, block.requested, block.stack, false});
  }
  const Start start = start_of(snapshot, device);
  out.unmatched = start.unmatched;
  out.comparison = play_again(snapshot, device, start);
  if (snapshot.has_history(device))
    walk_history(out, snapshot, start);
  else
    out.live = rows_of(live);
  return out;
}

std::vector<LivePlace> places_of(const Snapshot& snapshot, const std::vector<LiveRow>& rows) {
  std::map<std::tuple<Bytes, std::string, std::int64_t, std::string, bool>, std::size_t> known;
  std::vector<LivePlace> out;
  for (const auto& row : rows) {
    const Frame* frame = telling_frame(snapshot, row.stack);
    const Frame none;
    const Frame& f = frame != nullptr ? *frame : none;
    const auto [at, is_new] = known.try_emplace({row.bytes, f.file, f.line, f.function, row.before}, out.size());
    if (is_new) out.push_back({row.bytes, 0, frame, row.before});
    out[at->second].count += row.count;
  }
  std::stable_sort(out.begin(), out.end(), [](const LivePlace& a, const LivePlace& b) {
    return std::pair(a.total(), a.bytes) > std::pair(b.total(), b.bytes);
  });
  return out;
}

const Frame* telling_frame(const Snapshot& snapshot, StackId stack) {
  const Frame* python = nullptr;
  const Frame* named = nullptr;
  for (const std::uint32_t i : snapshot.stacks[stack]) {
    const Frame& frame = snapshot.frames[i];
    if (is_python(frame) && !is_torch(frame)) return &frame;
    if (python == nullptr && is_python(frame)) python = &frame;
    const bool unwinding = frame.function.find("unwind") != std::string::npos ||
                           frame.function.find("CapturedTraceback") != std::string::npos ||
                           frame.function.find("gather_with_cpp") != std::string::npos ||
                           frame.function.find("CUDACachingAllocator") != std::string::npos;
    if (named == nullptr && !frame.function.empty() && frame.function != "??" && !unwinding) named = &frame;
  }
  return python != nullptr ? python : named;
}

}  // namespace oomplan::snapshot
