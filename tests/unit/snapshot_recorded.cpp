// Recorded runs of the real allocator (tests/data/snapshots), laid out as the snapshot that PyTorch would write of them, written,
// read back, summed up and replayed.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <unordered_map>

#include "program_recorded.hpp"
#include "snapshot/history.hpp"
#include "snapshot/read.hpp"
#include "snapshot/write.hpp"

using namespace oomplan;
namespace snap = oomplan::snapshot;

namespace {

constexpr Bytes kLift = Bytes{1} << 40;  // recorded addresses are relative to the lowest

/// The snapshot of a run. Segment events stand in front of the request that causes them, as PyTorch records them.
snap::Snapshot snapshot_of(const recorded::Run& run) {
  snap::Snapshot out;
  out.settings = {{"PYTORCH_CUDA_ALLOC_CONF", run.settings}};
  out.frames = {{"/home/me/train.py", "step", 7}};
  out.stacks.push_back({0});
  for (const auto& s : run.after) {
    snap::Segment segment{0, s.address + kLift, s.bytes, s.stream, s.small, s.expandable, {0, s.pool}, {}};
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
  const auto put = [&](snap::Action action, Bytes address, Bytes bytes, int stream) {
    trace.push_back({action, action == snap::Action::oom ? address : address + kLift, bytes, stream, 0, 1});
  };
  const auto& events = run.events;
  for (std::size_t i = 0; i < events.size();) {
    const auto& e = events[i++];
    for (; i < events.size() && events[i].op >= recorded::Op::segment_alloc; ++i) {
      const auto step = static_cast<int>(events[i].op) - static_cast<int>(recorded::Op::segment_alloc);
      const auto action = static_cast<snap::Action>(static_cast<int>(snap::Action::segment_alloc) + step);
      put(action, events[i].address, events[i].size, events[i].stream);
      reserved += step == 0 || step == 2 ? events[i].size : -events[i].size;
    }
    using enum recorded::Op;
    if (e.op == alloc) {
      tensors.emplace_back(e.address, e.size);
      put(snap::Action::alloc, e.address, e.size, e.stream);
    } else if (e.op == oom) {
      put(snap::Action::oom, run.limit_low - reserved, e.size, e.stream);
    } else if (e.op != empty_cache) {
      const auto& [address, bytes] = tensors.at(static_cast<std::size_t>(e.tensor));
      if (e.op != complete) put(snap::Action::free_requested, address, bytes, e.stream);
      if (e.op != free_later) put(snap::Action::free_completed, address, bytes, e.stream);
    }
  }
  put(snap::Action::snapshot, -kLift, 0, 0);
  return out;
}

std::vector<recorded::Run> runs() {
  std::vector<recorded::Run> out;
  for (const auto& entry : std::filesystem::directory_iterator(OOMPLAN_SOURCE_DIR "/tests/data/snapshots"))
    if (entry.path().extension() == ".bin" && entry.path().stem() != "vectors")
      out.push_back(recorded::Reader(entry.path().string()).run());
  return out;
}

bool equal(const snap::Event& a, const snap::Event& b) {
  return a.action == b.action && a.address == b.address && a.bytes == b.bytes && a.stream == b.stream && a.time == b.time;
}

}  // namespace

TEST_CASE("snapshots of the recorded runs say what was recorded, and replay to the byte") {
  const auto all = runs();
  REQUIRE(all.size() == 24);
  std::int64_t ooms = 0;
  for (const auto& run : all) {
    CAPTURE(run.name);
    const auto made = snapshot_of(run);
    const auto read = snap::parse_snapshot(snap::to_pickle(made), "run.pickle");
    REQUIRE(read.segments.size() == made.segments.size());
    REQUIRE(read.traces.size() == 1);
    CHECK(std::equal(read.traces[0].begin(), read.traces[0].end(), made.traces[0].begin(), made.traces[0].end(), equal));
    CHECK(read.settings == made.settings);
    const auto h = snap::history_of(read, 0);
    CHECK(h.now.reserved == run.final_reserved);
    CHECK(h.now.allocated == run.final_allocated);
    CHECK(h.now.reserved == h.now.allocated + h.now.pending + h.now.free);
    CHECK(h.now.free == h.now.releasable + h.now.inactive_split);
    CHECK(h.reserved_peak.reserved == run.reserved_peak);
    CHECK(h.allocated_peak.allocated == run.allocated_peak);
    Bytes live = 0;
    for (const auto& row : h.live) live += row.total();
    CHECK(live == run.allocated_peak);
    CHECK(h.comparison.not_possible == "");
    CHECK(h.comparison.difference == "");
    CHECK(h.comparison.placed_equal == h.comparison.allocations);
    CHECK(h.comparison.segment_events == h.comparison.recorded_segment_events);
    CHECK(h.comparison.reserved_peak == run.reserved_peak);
    CHECK(h.comparison.recorded_reserved_peak == run.reserved_peak);
    CHECK(h.comparison.allocated_peak == run.allocated_peak);
    CHECK(h.comparison.ooms == run.ooms);
    CHECK(static_cast<std::int64_t>(h.ooms.size()) == run.ooms);
    for (const auto& oom : h.ooms) CHECK(oom.limit() == run.limit_low);
    ooms += run.ooms;
  }
  CHECK(ooms == 1);
}

TEST_CASE("a changed record: the replay says where it first differs") {
  for (const auto& run : runs()) {
    if (run.name != "attention_peak_t26") continue;
    auto changed = snapshot_of(run);
    auto& trace = changed.traces[0];
    const auto segment =
        std::find_if(trace.begin() + 5, trace.end(), [](const auto& e) { return e.action == snap::Action::segment_alloc; });
    REQUIRE(segment != trace.end());
    const auto place = segment - trace.begin();
    segment->bytes += 2 * kMiB;
    const auto h = snap::history_of(changed, 0);
    CHECK(h.comparison.first_difference > place);
    CHECK(h.comparison.first_difference <= place + 2);
    CHECK(h.comparison.difference.find("recorded segment_alloc") != std::string::npos);
  }
}
