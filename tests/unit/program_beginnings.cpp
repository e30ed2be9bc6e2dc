// Replays on devices of different sizes go on from beginnings that they share, and say what replays from the first event say.
#include <doctest/doctest.h>

#include <random>

#include "program/beginnings.hpp"
#include "program/flat_program.hpp"
#include "replay_same.hpp"

using namespace oomplan;

namespace {

/// Turns of many short loops that hold more and more, and fragment what they hold.
FlatProgram climbing(std::uint64_t seed, int turns) {
  ProgramWriter w;
  std::mt19937_64 random(seed);
  const auto site = [&](Bytes bytes, Pool pool) {
    return w.site(
        {"t", {bytes}, DType::int8, bytes, Category::other, pool, static_cast<std::uint8_t>(random() % 2), Holder::local});
  };
  std::vector<SiteRef> kept;
  for (int turn = 0; turn < turns; ++turn) {
    for (int stretch = 0; stretch < 25; ++stretch) {
      w.mark(stretch % 2 == 0 ? "forward" : "backward");
      std::vector<SiteRef> inner;
      for (int i = 0; i < 40; ++i)
        inner.push_back(site(static_cast<Bytes>(1 + random() % (8 * kMiB)), i == 9 ? Pool::driver : Pool::torch));
      w.repeat(12, [&](Index m) {
        for (const auto& t : inner) w.alloc(t, m);
        for (std::size_t i = 0; i < inner.size(); i += 2) w.free(inner[i], m);
        for (std::size_t i = 1; i < inner.size(); i += 2) w.free(inner[i], m);
      });
      kept.push_back(site(static_cast<Bytes>(1 + random() % (12 * kMiB)), Pool::torch));
      w.alloc(kept.back());
      if (stretch % 5 == 4) w.free(kept[kept.size() - 3]);
    }
    w.mark(std::string(kTurnEnd));
  }
  return FlatProgram(w.take());
}

}  // namespace

TEST_CASE("what a search for the smallest device finds out is what replays from the first event show") {
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    CAPTURE(seed);
    const FlatProgram one = climbing(seed, 2), other = climbing(100 + seed, 2);
    SharedGpu gpu{{{&one}, {&other}}, {0, 1, 0, 1}};
    if (seed % 2 == 0) gpu.processes.push_back({nullptr, {200 * kMiB, 90 * kMiB}}), gpu.turns = {0, 2, 1, 0, 2, 1};
    AllocatorSettings s;
    s.expandable_segments = seed % 3 == 0;
    s.device_total = 4096 * kMiB;
    Replays replays(gpu, s);
    const Bytes need = *replays.needed_capacity();
    REQUIRE(need > 0);
    std::mt19937_64 random(seed);
    for (int i = 0; i < 24; ++i) {
      s.device_limit = i < 4 ? need - i : need - 60 * kMiB + static_cast<Bytes>(random() % (120 * kMiB));
      CAPTURE(s.device_limit);
      const SharedReplay fresh = replay(gpu, s);
      const SharedReplay& told = replays.at(s.device_limit);
      CHECK(told.ok == fresh.ok);
      CHECK(told.failed_process == fresh.failed_process);
      CHECK(told.device_peak == fresh.device_peak);
      CHECK(told.refused == fresh.refused);
      REQUIRE(told.turns.size() == fresh.turns.size());
      for (std::size_t t = 0; t < told.turns.size(); ++t) {
        CHECK(told.turns[t].process == fresh.turns[t].process);
        CHECK(told.turns[t].beside == fresh.turns[t].beside);
        CHECK(told.turns[t].held == fresh.turns[t].held);
        CHECK(told.turns[t].phases.size() == fresh.turns[t].phases.size());
      }
      for (std::size_t p = 0; p < told.processes.size(); ++p) check_same(told.processes[p], fresh.processes[p]);
    }
  }
}

TEST_CASE("a run that was kept is a beginning of those that it says, and the furthest one is taken") {
  const FlatProgram program = climbing(7, 2);
  const SharedGpu gpu{{{&program}}, {0, 0}};
  SharedReplay whole = replay(gpu, AllocatorSettings{});
  Beginnings beginnings;
  beginnings.narrow(program.peak - 1, whole.device_peak);
  SharedRun run(gpu, AllocatorSettings{});
  beginnings.start(run);
  const std::int64_t played = [&] {
    static_cast<void>(run.finish(AllocatorSettings{}.device_limit, [&] { beginnings.look(run); }));
    return run.played();
  }();
  CHECK(beginnings.of(program.peak / 8) == nullptr);
  const SharedRun* first = beginnings.of(program.peak);
  const SharedRun* last = beginnings.of(whole.device_peak);
  REQUIRE(first != nullptr);
  REQUIRE(last != nullptr);
  CHECK(first->granted() <= program.peak);
  CHECK(last->passed() >= first->passed());
  CHECK(last->played() > played / 2);
  SharedRun again = *last;
  const SharedReplay rest = again.finish(whole.device_peak, {});
  CHECK(rest.device_peak == whole.device_peak);
  check_same(rest.processes.front(), whole.processes.front());
  CHECK(again.played() == played);
  beginnings.narrow(whole.device_peak, whole.device_peak + kMiB);  // what served the smaller ones only is forgotten
  CHECK(beginnings.of(whole.device_peak + 1) != nullptr);
  CHECK(beginnings.of(program.peak) == nullptr);
}
