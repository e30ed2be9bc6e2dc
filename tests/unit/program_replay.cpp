// Programs read through the allocator: phases, what others hold, where memory runs out, and the smallest device.
#include <doctest/doctest.h>

#include <random>

#include "program/replay.hpp"
#include "replay_same.hpp"

using namespace oomplan;

namespace {

SiteRef site(ProgramWriter& w, const char* name, Bytes bytes, Pool pool = Pool::torch, std::uint8_t stream = 0) {
  return w.site({name, {bytes}, DType::int8, bytes, Category::other, pool, stream, Holder::local});
}
AllocatorSettings limit(Bytes bytes) {
  AllocatorSettings s;
  s.device_limit = bytes;
  return s;
}

}  // namespace

TEST_CASE("three figures by hand: allocated, reserved, needed") {
  ProgramWriter w;
  const auto context = site(w, "context", 10 * kMiB, Pool::driver);
  const auto a = site(w, "a", 30 * kMiB), b = site(w, "b", 40 * kMiB);
  w.alloc(context);
  w.mark("first");
  w.alloc(a);
  w.free(a);
  w.mark("second");
  w.alloc(b);
  const Program p = w.take();
  const Replay roomy = replay(p, {});
  CHECK(roomy.ok);
  CHECK(roomy.allocated_peak == 40 * kMiB);
  CHECK(roomy.reserved_peak == 70 * kMiB);  // a's segment is kept
  CHECK(roomy.reserved_end == 70 * kMiB);
  CHECK(roomy.outside_end == 10 * kMiB);
  CHECK(roomy.device_peak == 80 * kMiB);
  CHECK(roomy.refused == 0);
  REQUIRE(roomy.phases.size() == 3);
  CHECK(roomy.phases[1].phase == "first");
  CHECK(roomy.phases[1].device_peak == 40 * kMiB);
  CHECK(roomy.phases[2].reserved_peak == 70 * kMiB);
  CHECK(needed_capacity(p, {}) == 50 * kMiB);  // it is given back when b asks
  const Replay tight = replay(p, limit(50 * kMiB));
  CHECK(tight.ok);
  CHECK(tight.retries == 1);
  CHECK(tight.phases[2].retries == 1);
  CHECK(tight.refused == 80 * kMiB);
  const Replay failed = replay(p, limit(50 * kMiB - 1));
  CHECK_FALSE(failed.ok);
  CHECK(failed.failed_event == 3);  // context, a, free of a, b
  CHECK(failed.failed_phase == "second");
  CHECK(failed.failed_bytes == 40 * kMiB);
}

TEST_CASE("a trim gives the cache back, streams do not share it") {
  ProgramWriter w;
  const auto a = site(w, "a", 30 * kMiB), gathered = site(w, "gathered", 30 * kMiB, Pool::torch, 1);
  w.alloc(a);
  w.free(a);
  w.alloc(gathered);
  w.free(gathered);
  w.trim();
  w.alloc(a);
  const Replay r = replay(w.take(), {});
  CHECK(r.reserved_peak == 60 * kMiB);
  CHECK(r.reserved_end == 30 * kMiB);
}

TEST_CASE("a block that another stream used waits until the CPU has waited for it, or until a phase ends") {
  // six units of 40 MiB one after another: each new one can have the block of the one `in_flight` before the last freed one
  const auto run = [](std::uint8_t in_flight, bool phases) {
    ProgramWriter w;
    const auto unit = w.site({"unit", {}, DType::int8, 40 * kMiB, Category::other, Pool::torch, 1, Holder::local, in_flight});
    for (std::int64_t i = 0; i < 6; ++i) {
      if (phases) w.mark("phase " + std::to_string(i));
      w.alloc(unit, Index(i));
      w.free(unit, Index(i));
    }
    return w.take();
  };
  CHECK(replay(run(0, false), {}).reserved_peak == 40 * kMiB);
  CHECK(replay(run(1, false), {}).reserved_peak == 80 * kMiB);
  CHECK(replay(run(2, false), {}).reserved_peak == 120 * kMiB);
  CHECK(replay(run(2, false), {}).allocated_peak == 40 * kMiB);
  CHECK(replay(run(2, true), {}).reserved_peak == 40 * kMiB);
  CHECK(needed_capacity(run(2, false), {}) == 40 * kMiB);  // a request that does not fit waits for all
}

TEST_CASE("a pausable pool empties the cache when it does not fit, the driver and a resume do not") {
  for (const Pool pool : {Pool::pausable, Pool::driver}) {
    CAPTURE(name(pool));
    ProgramWriter w;
    const auto a = site(w, "a", 30 * kMiB), weights = site(w, "weights", 50 * kMiB, pool);
    w.alloc(a);
    w.free(a);
    w.alloc(weights);
    const Replay r = replay(w.take(), limit(60 * kMiB));
    CHECK(r.ok == (pool == Pool::pausable));
    CHECK(r.retries == (pool == Pool::pausable ? 1 : 0));
  }
  ProgramWriter w;
  const auto a = site(w, "a", 30 * kMiB), weights = site(w, "weights", 50 * kMiB, Pool::pausable);
  w.alloc(weights);
  w.pause(Pool::pausable, 50 * kMiB);
  w.alloc(a);
  w.free(a);
  w.resume(Pool::pausable, 50 * kMiB);
  const Program p = w.take();
  CHECK(replay(p, limit(80 * kMiB)).ok);
  CHECK_FALSE(replay(p, limit(79 * kMiB)).ok);
  CHECK(needed_capacity(p, {}) == 80 * kMiB);
}

TEST_CASE("host tensors and empty ones take nothing, but count as events") {
  ProgramWriter w;
  const auto host = site(w, "host", kGiB, Pool::pinned), none = site(w, "none", 0), a = site(w, "a", 30 * kMiB);
  w.alloc(host);
  w.alloc(none);
  w.free(none);
  w.alloc(a);
  w.free(host);
  const Program p = w.take();
  CHECK(needed_capacity(p, {}) == 30 * kMiB);
  CHECK(replay(p, limit(kMiB)).failed_event == 3);
  CHECK(needed_capacity(Program{}, {}) == 0);
}

TEST_CASE("a long loop whose state repeats gives what playing every turn gives") {
  for (int variant = 0; variant < 12; ++variant) {
    CAPTURE(variant);
    // The same description with the loop as a loop, and written out.
    const auto make = [&](bool as_loop) {
      ProgramWriter w;
      std::mt19937_64 sizes(static_cast<std::uint64_t>(variant));
      std::vector<SiteRef> layer;
      for (int i = 0; i < 6; ++i)
        layer.push_back(
            site(w, "t", static_cast<Bytes>(1 + sizes() % (24 * kMiB)), Pool::torch, static_cast<std::uint8_t>(i == 3)));
      const auto graph = site(w, "graph", 5 * kMiB, Pool::driver), grad = site(w, "grad", 3 * kMiB);
      const auto turn = [&](Index m, bool first) {
        w.mark("forward");
        for (int l = 0; l < 50; ++l)
          for (const auto& t : layer) w.alloc(t, Index(l), m);
        w.alloc(graph, m);
        w.mark("backward");
        for (int l = 50; l-- > 0;) {
          if (first) w.alloc(grad, Index(l));
          for (std::size_t i = layer.size(); i-- > 0;) w.free(layer[i], Index(l), m);
        }
        if (variant % 4 == 3) w.trim();
        w.free(graph, m);
      };
      turn(Index(0), true);
      if (as_loop) {
        w.repeat(30, [&](Index m) { turn(m, false); }, Direction::forward, 1);
      } else {
        for (std::int64_t m = 1; m <= 30; ++m) turn(Index(m), false);
      }
      w.mark("after");
      w.alloc(layer[0]);
      return FlatProgram(w.take(), nullptr, !as_loop);
    };
    const FlatProgram looped = make(true), unrolled = make(false);
    REQUIRE(looped.loops.size() == 1);
    CHECK(unrolled.loops.empty());
    CHECK(looped.events.size() < unrolled.events.size() / 4);
    AllocatorSettings s;
    s.expandable_segments = variant % 3 == 1;
    check_same_everywhere(looped, unrolled, s, 100 * kMiB);
  }
}

TEST_CASE("no device is large enough for a memory fraction that refuses") {
  ProgramWriter w;
  w.alloc(site(w, "a", 30 * kMiB));
  AllocatorSettings s;
  s.device_total = 100 * kMiB;
  s.memory_fraction = 0.2;
  CHECK(needed_capacity(w.take(), s) == -1);
}

TEST_CASE("needed capacity holds at the limit found, a page above, and not much below") {
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    CAPTURE(seed);
    std::mt19937_64 random(seed);
    ProgramWriter w;
    std::vector<SiteRef> sites;
    for (int i = 0; i < 8; ++i)
      sites.push_back(site(w, "t", static_cast<Bytes>(1 + random() % (80 * kMiB)), i == 7 ? Pool::driver : Pool::torch,
                           static_cast<std::uint8_t>(random() % 2)));
    std::vector<std::pair<std::size_t, std::int64_t>> live;
    for (std::int64_t i = 0; i < 300; ++i) {
      if (live.size() < 3 || (random() % 2 == 0 && live.size() < 20)) {
        live.emplace_back(random() % sites.size(), i);
        w.alloc(sites[live.back().first], Index(i));
      } else {
        const auto at = random() % live.size();
        w.free(sites[live[at].first], Index(live[at].second));
        live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
      }
    }
    const FlatProgram p(w.take());
    AllocatorSettings s;
    s.expandable_segments = seed % 3 == 0;
    Replays replays(p, s);
    const Bytes need = *replays.needed_capacity();
    const Replay roomy = replay(p, s);
    CHECK(need <= roomy.device_peak);
    CHECK(need >= p.peak);
    s.device_limit = need;
    const Replay at = replay(p, s);
    CHECK(at.ok);
    CHECK(at.device_peak == need);
    s.device_limit = need + 2 * kMiB;
    CHECK(replay(p, s).ok);
    s.device_limit = p.peak - 1;
    CHECK_FALSE(replay(p, s).ok);
    bool below = false;  // some limit within a page below fails
    for (Bytes less = 1; less <= 2 * kMiB && !below; less += kMiB / 4) {
      s.device_limit = need - less;
      below = !replay(p, s).ok;
    }
    CHECK(below);
    // A bound stops the search only where it is passed.
    for (const Bytes most : {p.peak - 1, p.peak, need - kMiB, need - 1, need, need + kMiB}) {
      const auto bounded = Replays(p, s).needed_capacity(most);
      CHECK((bounded ? *bounded == need : need > most));
    }
    // What another device's run says of this one is what a run on this one says.
    for (int i = 0; i < 40; ++i) {
      s.device_limit = p.peak - 20 * kMiB + static_cast<Bytes>(random() % static_cast<std::uint64_t>(need - p.peak + 60 * kMiB));
      const Replay fresh = replay(p, s);
      const Replay& told = replays.at(s.device_limit).processes.front();
      CHECK(told.ok == fresh.ok);
      CHECK(told.failed_event == fresh.failed_event);
      CHECK(told.failed_bytes == fresh.failed_bytes);
      CHECK(told.retries == fresh.retries);
      CHECK(told.device_peak == fresh.device_peak);
      CHECK(told.reserved_peak == fresh.reserved_peak);
      CHECK(told.reserved_end == fresh.reserved_end);
      CHECK(told.allocated_peak == fresh.allocated_peak);
      CHECK(told.refused == fresh.refused);
    }
  }
}
