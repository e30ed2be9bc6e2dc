// The predicted run, written as PyTorch's snapshot and read back: the same peaks as the replay that explain() shows.
#include <doctest/doctest.h>

#include <algorithm>

#include "estimate/explain.hpp"
#include "estimate_jobs.hpp"
#include "program/replay.hpp"
#include "snapshot/history.hpp"
#include "snapshot/predicted.hpp"
#include "snapshot/read.hpp"
#include "snapshot/write.hpp"

using namespace oomplan;
using namespace oomplan::snapshot;

TEST_CASE("a predicted run reads back to its peaks, and replays to itself") {
  int trained = 0;
  for (const auto& [name, text] : job_matrix()) {
    CAPTURE(name);
    const Job job = job_of(text);
    const ProcessRun run = fullest_run(job, Catalog::builtin(), TapeStore::shared());
    const auto torch = std::none_of(run.program.sites.begin(), run.program.sites.end(),
                                    [](const Site& s) { return s.pool == Pool::pausable && s.bytes > 0; });
    const auto made = predicted_snapshot(run.program, run.settings);
    const auto h = history_of(parse_snapshot(to_pickle(made), "p.pickle"), 0);
    CHECK(h.unmatched == 0);
    CHECK(h.comparison.not_possible == "");
    CHECK(h.comparison.difference == "");
    CHECK(h.comparison.placed_equal == h.comparison.allocations);
    if (!torch) continue;  // replay() does not take the pausable pool for segments of the allocator's
    const Replay r = replay(run.program, run.settings);
    CHECK(h.allocated_peak.allocated == r.allocated_peak);
    CHECK(h.reserved_peak.reserved == r.reserved_peak);
    CHECK(h.now.reserved == r.reserved_end);
    ++trained;
  }
  CHECK(trained > 5);
}

TEST_CASE("a pausable pool is a private one of the allocator, which does not see its pages go and come back") {
  ProgramWriter w;
  const auto site = [&](const char* name, Bytes bytes, Pool pool) {
    Site s;
    s.name = name;
    s.bytes = bytes;
    s.shape = {bytes / 2};
    s.pool = pool;
    return w.site(s);
  };
  const auto weights = site("weights", 64 * kMiB, Pool::torch), cache = site("cache", 299 * kMiB, Pool::pausable);
  const auto other = site("other", 100 * kMiB, Pool::torch);
  w.mark("rollout.start");
  w.alloc(weights, Index(3));
  w.alloc(cache);
  w.free(cache);  // asleep
  w.alloc(other);
  w.free(other);
  w.trim();
  w.mark("rollout.wake");
  w.alloc(cache);
  w.pause(Pool::pausable, 299 * kMiB);
  w.resume(Pool::pausable, 299 * kMiB);
  AllocatorSettings settings;
  settings.device_limit = 400 * kMiB;
  const auto s = parse_snapshot(to_pickle(predicted_snapshot(w.take(), settings)), "p.pickle");
  REQUIRE(s.segments.size() == 2);
  CHECK(s.segments[0].pool == std::pair<std::int64_t, std::int64_t>(0, 1));
  CHECK(s.segments[0].bytes == 300 * kMiB);
  CHECK(s.segments[0].blocks.size() == 1);
  const auto count = [&](Action action) {
    return std::count_if(s.traces[0].begin(), s.traces[0].end(), [&](const auto& e) { return e.action == action; });
  };
  CHECK(count(Action::segment_alloc) == 3);
  CHECK(count(Action::segment_free) == 1);
  const auto h = history_of(s, 0);
  CHECK(h.ooms.empty());
  CHECK(h.comparison.difference == "");
  CHECK(h.reserved_peak.reserved == 464 * kMiB);
  CHECK(h.now.allocated == 364 * kMiB);
  CHECK(*telling_frame(s, s.segments[1].blocks[0].stack) == Frame{"rollout.start", "weights bf16[33554432]", 3});
}

TEST_CASE("a predicted run that finds no memory ends with the request") {
  ProgramWriter w;
  Site site;
  site.name = "x";
  site.bytes = 100 * kMiB;
  const auto x = w.site(site);
  w.alloc(x, Index(0));
  w.alloc(x, Index(1));
  AllocatorSettings settings;
  settings.device_limit = 150 * kMiB;
  const auto h = history_of(predicted_snapshot(w.take(), settings), 0);
  REQUIRE(h.ooms.size() == 1);
  CHECK(h.ooms[0].free == 50 * kMiB);
  CHECK(h.ooms[0].limit() == 150 * kMiB);
  CHECK(h.comparison.ooms == 1);
}
