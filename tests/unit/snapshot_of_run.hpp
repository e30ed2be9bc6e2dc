// A recorded run of the real allocator, laid out as the snapshot that PyTorch would write of it.
#pragma once
#include <algorithm>
#include <utility>
#include <vector>

#include "program_recorded.hpp"
#include "snapshot/snapshot.hpp"

namespace oomplan::recorded {

inline constexpr Bytes kLift = Bytes{1} << 40;  // recorded addresses are relative to the lowest

/// The snapshot of a run. Segment events stand in front of the request that causes them, as PyTorch records them.
inline snapshot::Snapshot snapshot_of(const Run& run) {
  snapshot::Snapshot out;
  out.settings = {{"PYTORCH_CUDA_ALLOC_CONF", run.settings}};
  out.frames = {{"/home/me/train.py", "step", 7}};
  out.stacks.push_back({0});
  for (const auto& s : run.after) {
    snapshot::Segment segment{0, s.address + kLift, s.bytes, s.stream, s.small, s.expandable, {0, s.pool}, {}};
    Bytes at = segment.address;
    for (const auto& b : s.blocks) {
      segment.blocks.push_back({at, b.size, b.requested, b.state, b.state == BlockState::inactive ? 0U : 1U});
      at += b.size;
    }
    out.segments.push_back(std::move(segment));
  }
  std::vector<std::pair<Bytes, Bytes>> tensors;  // address and request
  for (const auto& s : run.before) {
    Bytes at = s.address;
    for (const auto& b : s.blocks) {
      if (b.state != BlockState::inactive) tensors.emplace_back(at, b.requested);
      at += b.size;
    }
  }
  auto& trace = out.traces.emplace_back();
  Bytes reserved = 0;
  for (const auto& s : run.before) reserved += s.bytes;
  const auto put = [&](snapshot::Action action, Bytes address, Bytes bytes, int stream) {
    trace.push_back({action, action == snapshot::Action::oom ? address : address + kLift, bytes, stream, 0, 1});
  };
  const auto& events = run.events;
  for (std::size_t i = 0; i < events.size();) {
    const auto& e = events[i++];
    for (; i < events.size() && events[i].op >= Op::segment_alloc; ++i) {
      const auto step = static_cast<int>(events[i].op) - static_cast<int>(Op::segment_alloc);
      const auto action = static_cast<snapshot::Action>(static_cast<int>(snapshot::Action::segment_alloc) + step);
      put(action, events[i].address, events[i].size, events[i].stream);
      reserved += step == 0 || step == 2 ? events[i].size : -events[i].size;
    }
    using enum Op;
    if (e.op == alloc) {
      tensors.emplace_back(e.address, e.size);
      put(snapshot::Action::alloc, e.address, e.size, e.stream);
    } else if (e.op == oom) {
      put(snapshot::Action::oom, run.limit_low - reserved, e.size, e.stream);
    } else if (e.op != empty_cache) {
      const auto& [address, bytes] = tensors.at(static_cast<std::size_t>(e.tensor));
      if (e.op != complete) put(snapshot::Action::free_requested, address, bytes, e.stream);
      if (e.op != free_later) put(snapshot::Action::free_completed, address, bytes, e.stream);
    }
  }
  put(snapshot::Action::snapshot, -kLift, 0, 0);
  return out;
}

}  // namespace oomplan::recorded
