// Recorded runs of the real allocator (tests/data/snapshots), laid out as the snapshot that PyTorch would write of them, written,
// read back, summed up and replayed.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>

#include "program_recorded.hpp"
#include "snapshot/history.hpp"
#include "snapshot/read.hpp"
#include "snapshot/write.hpp"
#include "snapshot_of_run.hpp"

using namespace oomplan;
namespace snap = oomplan::snapshot;

namespace {

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
    const auto made = recorded::snapshot_of(run);
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
    auto changed = recorded::snapshot_of(run);
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
