// The allocator against recorded runs of the real one. What a replay takes from a record: the requests, the moment at which
// another stream is done, the program's own empty_cache, and where new segments lie. All else it has to predict.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "program_recorded.hpp"

using namespace oomplan;
using namespace oomplan::recorded;

namespace {

std::vector<Run> runs() {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(OOMPLAN_SOURCE_DIR "/tests/data/snapshots"))
    if (entry.path().extension() == ".bin" && entry.path().stem() != "vectors") paths.push_back(entry.path().string());
  std::sort(paths.begin(), paths.end());
  std::vector<Run> out;
  for (const auto& path : paths) out.push_back(Reader(path).run());
  return out;
}

}  // namespace

TEST_CASE("the allocator replays every recorded run to the byte") {
  const auto all = runs();
  REQUIRE(all.size() == 24);
  for (const Run& run : all) {
    CAPTURE(run.name);
    // Between the two ends of the interval lie all devices that would have refused what was refused, and nothing else.
    for (const Bytes limit : {run.limit_low, run.limit_high}) {
      CAPTURE(limit);
      const auto d = replay(run, settings_of(run, limit), true);
      CHECK(d.blocks == 0);
      CHECK(d.segments == 0);
      CHECK(d.level == 0);
      CHECK(d.refused == 0);
      CHECK(d.final_segments == 0);
      CHECK(d.counters.retries == run.retries + run.ooms);
      CHECK(d.counters.ooms == run.ooms);
      CHECK(d.counters.reserved_peak == run.reserved_peak);
      CHECK(d.counters.allocated_peak == run.allocated_peak);
      CHECK(d.counters.reserved == run.final_reserved);
      CHECK(d.counters.allocated == run.final_allocated);
    }
  }
}

TEST_CASE("made-up falling addresses give every recorded reserved peak") {
  for (const Run& run : runs()) {
    CAPTURE(run.name);
    const auto d = replay(run, settings_of(run, run.limit_low), false);
    CHECK(d.refused == 0);
    CHECK(d.counters.reserved_peak == run.reserved_peak);
    // Blocks handed out whole may differ by a rest: two runs on Windows, whose addresses rise, by less than 0.06 %.
    CHECK(std::abs(d.counters.allocated_peak - run.allocated_peak) <= run.allocated_peak / 1600);
  }
}

TEST_CASE("settings that no recorded run uses: another reader of the rules answers the same") {
  Reader reader(OOMPLAN_SOURCE_DIR "/tests/data/snapshots/vectors.bin");
  int cases = 0;
  while (reader.more()) {
    const Run run = reader.run();
    CAPTURE(run.name);
    CAPTURE(run.settings);
    const auto d = replay(run, settings_of(run, run.limit_low), false);
    CHECK(d.none());
    CHECK(d.counters.retries == run.retries);
    CHECK(d.counters.reserved_peak == run.reserved_peak);
    CHECK(d.counters.allocated_peak == run.allocated_peak);
    CHECK(d.counters.reserved == run.final_reserved);
    CHECK(d.counters.allocated == run.final_allocated);
    ++cases;
  }
  CHECK(cases == 11);
}
