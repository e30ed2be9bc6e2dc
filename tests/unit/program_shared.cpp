// Processes that take turns on one GPU: what an idle one keeps, and when it is made to give some back.
#include <doctest/doctest.h>

#include "program/replay.hpp"

using namespace oomplan;

namespace {

SiteRef tensor(ProgramWriter& w, const char* name, Bytes bytes) {
  return w.site({name, {bytes}, DType::int8, bytes, Category::other, Pool::torch, 0, Holder::local});
}
AllocatorSettings device_of(Bytes bytes) {
  AllocatorSettings s;
  s.device_limit = bytes;
  return s;
}

/// Two turns: the first leaves `first` bytes free in the cache and `kept` in use.
FlatProgram trainer(Bytes first, Bytes kept) {
  ProgramWriter w;
  const auto a = tensor(w, "a", first), b = tensor(w, "b", kept);
  w.mark("train");
  w.alloc(a);
  w.free(a);
  if (kept > 0) w.alloc(b);
  w.mark(kTurnEnd);
  w.mark("save");
  w.mark(kTurnEnd);
  return FlatProgram(w.take());
}
FlatProgram server(Bytes bytes) {
  ProgramWriter w;
  const auto c = tensor(w, "c", bytes);
  w.mark("serve");
  w.alloc(c);
  w.free(c);
  w.mark(kTurnEnd);
  return FlatProgram(w.take());
}

}  // namespace

TEST_CASE("what an idle process keeps reserved stands beside the one at work") {
  const FlatProgram a = trainer(60 * kMiB, 0), b = server(50 * kMiB);
  CHECK(a.turn_ends.size() == 2);
  Replays replays(SharedGpu{{{&a}, {&b}}, {0, 1, 0}}, {});
  const SharedReplay& roomy = replays.roomy();
  REQUIRE(roomy.turns.size() == 3);
  CHECK(roomy.turns[0].beside == 0);
  CHECK(roomy.turns[1].beside == 60 * kMiB);
  CHECK(roomy.turns[2].beside == 50 * kMiB);
  REQUIRE(roomy.turns[1].phases.back().phase == "serve");
  CHECK(roomy.turns[1].phases.back().device_peak == 50 * kMiB);
  CHECK(roomy.device_peak == 110 * kMiB);
  CHECK(roomy.processes[0].device_peak == 60 * kMiB);
  CHECK(*replays.needed_capacity() == 110 * kMiB);  // b's retry cannot empty a's cache
  const SharedReplay& tight = replays.at(110 * kMiB - 1);
  CHECK_FALSE(tight.ok);
  CHECK(tight.failed_process == 1);
  CHECK(tight.processes[1].failed_phase == "serve");
  CHECK(tight.refused == 110 * kMiB);
  CHECK(tight.turns.size() == 2);
}

TEST_CASE("a process that had to empty its cache keeps less when it is idle") {
  const FlatProgram a = trainer(60 * kMiB, 70 * kMiB), b = server(50 * kMiB);
  Replays replays(SharedGpu{{{&a}, {&b}}, {0, 1, 0}}, {});
  CHECK(replays.roomy().turns[1].beside == 130 * kMiB);
  CHECK(replays.roomy().device_peak == 180 * kMiB);
  CHECK(*replays.needed_capacity() == 120 * kMiB);
  CHECK(replays.at(120 * kMiB).turns[1].beside == 70 * kMiB);
  CHECK(replays.at(120 * kMiB).processes[0].retries == 1);
  // up to 130 MiB a gives its cache back, up to 180 MiB it does not and b runs out, beyond all fits
  CHECK(replays.at(129 * kMiB).ok);
  CHECK_FALSE(replays.at(131 * kMiB).ok);
  CHECK(*replays.needed_capacity(200 * kMiB, 131 * kMiB) == 180 * kMiB);
  CHECK_FALSE(replays.needed_capacity(119 * kMiB));
}

TEST_CASE("a process that is not replayed counts with what it is said to hold") {
  const FlatProgram b = server(50 * kMiB);
  Replays replays(SharedGpu{{{nullptr, {20 * kMiB, 30 * kMiB}}, {&b}}, {0, 0, 1}}, {});
  CHECK(replays.roomy().turns[2].beside == 30 * kMiB);
  CHECK(*replays.needed_capacity() == 80 * kMiB);
  const SharedReplay& small = replays.at(25 * kMiB);
  CHECK_FALSE(small.ok);
  CHECK(small.failed_process == 0);
  CHECK(small.refused == 30 * kMiB);
}

TEST_CASE("runs of shared devices say of other sizes what a run there would") {
  const FlatProgram a = trainer(60 * kMiB, 70 * kMiB), b = server(50 * kMiB);
  const SharedGpu gpu{{{&a}, {&b}}, {0, 1, 0}};
  Replays replays(gpu, {});
  for (Bytes size = 40 * kMiB; size < 200 * kMiB; size += 3 * kMiB) {
    CAPTURE(size);
    const SharedReplay fresh = replay(gpu, device_of(size));
    const SharedReplay& told = replays.at(size);
    CHECK(told.ok == fresh.ok);
    CHECK(told.device_peak == fresh.device_peak);
    CHECK(told.refused == fresh.refused);
    CHECK(told.failed_process == fresh.failed_process);
    CHECK(told.turns.size() == fresh.turns.size());
  }
}
