// Programs with loops, flattened: turns that are not written down change nothing of what a replay and a ledger say.
#include <doctest/doctest.h>

#include <random>

#include "program/events.hpp"
#include "program/flat_program.hpp"
#include "program/replay.hpp"
#include "replay_same.hpp"
#include "sampled.hpp"

using namespace oomplan;

namespace {

/// The same program, every event written down.
Program unrolled(const Program& program) {
  ProgramWriter w;
  std::vector<SiteRef> refs;
  for (const Site& s : program.sites) refs.push_back(w.site(s));
  expand(program, [&](const Event& e) {
    if (e.kind == Program::Kind::mark) w.mark(program.labels[e.site]);
    if (e.kind == Program::Kind::trim) w.trim();
    if (e.kind == Program::Kind::segments) w.expandable_segments(e.bytes != 0);
    if (e.kind == Program::Kind::alloc) w.alloc(refs[e.site], Index(e.tensor));
    if (e.kind == Program::Kind::free) w.free(refs[e.site], Index(e.tensor));
    return true;
  });
  return w.take();
}

/// Loops in loops, with tensors that live for a turn, into later turns, or until another loop frees them.
class Generator {
 public:
  explicit Generator(std::uint64_t seed) : random_(seed) {
    for (int i = 0; i < 40; ++i) {
      const bool host = below(12) == 0, driver = below(20) == 0;
      const Bytes bytes = below(15) == 0 ? 0 : 1 + below(2) * below(20 * kMiB) + below(3 * kMiB);
      sites_.push_back(w_.site({"t",
                                {bytes},
                                DType::int8,
                                bytes,
                                Category(below(6)),
                                host     ? Pool::pinned
                                : driver ? Pool::driver
                                         : Pool::torch,
                                static_cast<std::uint8_t>(below(8) == 0),
                                Holder::local,
                                static_cast<std::uint8_t>(below(12) == 0 ? 2 : 0)}));
    }
  }
  Program make() {
    w_.mark("first");
    piece(0, Index(0));
    w_.mark("second");
    for (int i = 0; i < 3; ++i) piece(0, Index(i));
    return w_.take();
  }

 private:
  std::int64_t below(std::int64_t n) { return static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(n)); }
  /// Every site is used at one place, so that names are not used twice.
  SiteRef next() { return sites_[at_++ % sites_.size()]; }
  bool left() const { return at_ + 4 < sites_.size(); }

  void piece(int depth, Index outer) {
    if (!left()) return;
    const SiteRef a = next(), b = next();
    switch (below(depth == 0 ? 8 : 5)) {
      case 0:
        w_.alloc(a, outer);
        w_.alloc(b, outer);
        w_.free(a, outer);
        if (depth < 2) piece(depth + 1, outer);
        w_.free(b, outer);
        return;
      case 1:
        w_.alloc(a, outer);
        w_.free(a, outer);
        if (below(3) == 0) w_.mark("in a loop");
        if (below(4) == 0) w_.trim();
        if (below(4) == 0) w_.expandable_segments(below(2) == 0);
        return;
      default:
        return loop(depth, outer, a, b);
    }
  }
  void loop(int depth, Index outer, const SiteRef& a, const SiteRef& b) {
    const std::int64_t turns = below(60), through = below(6);  // turns that `a` lives through
    const bool back = below(2) == 0, keeps = depth == 0 && below(3) == 0;
    const Direction direction = back ? Direction::backward : Direction::forward;
    const std::int64_t step = back ? -1 : 1, first = back ? turns - 1 : 0;
    for (std::int64_t i = 1; i <= through; ++i) w_.alloc(a, Index(first - step * i), outer);
    const std::size_t mine = at_;
    w_.repeat(
        turns,
        [&](Index i) {
          at_ = mine;
          w_.alloc(a, i, outer);
          if (keeps) w_.alloc(b, i);
          if (depth < 2) piece(depth + 1, i);
          w_.free(a, i - step * through, outer);
        },
        direction, first);
    for (std::int64_t i = 0; i < through; ++i) w_.free(a, Index(first + step * (turns - 1 - i)), outer);
    if (keeps) w_.repeat(turns, [&](Index i) { w_.free(b, i); }, below(2) == 0 ? Direction::forward : Direction::backward, 0);
  }

  std::mt19937_64 random_;
  ProgramWriter w_;
  std::vector<SiteRef> sites_;
  std::size_t at_ = 0;
};

}  // namespace

TEST_CASE("turns that are more of the same need not be written down") {
  std::size_t loops = 0, written = 0, expanded = 0;
  Sample sample(1);
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    if (!sample.takes()) continue;
    CAPTURE(seed);
    Program program;
    try {
      program = Generator(seed).make();
      count_events(program, 1);
      events_of(program);
    } catch (const Defect&) {
      continue;  // a loop backwards that frees what it has not made yet
    }
    std::vector<PhaseLedger> ledgers;
    const FlatProgram flat(program, &ledgers), all(unrolled(program), nullptr, true);
    loops += flat.loops.size();
    written += flat.events.size();
    expanded += all.events.size();
    CHECK(all.loops.empty());
    CHECK(flat.peak == all.peak);
    CHECK(flat.slots == all.slots);
    const std::vector<PhaseLedger> expected = ledger_by_phase(program);
    REQUIRE(ledgers.size() == expected.size());
    for (std::size_t i = 0; i < ledgers.size(); ++i) {
      CHECK(ledgers[i].phase == expected[i].phase);
      CHECK(ledgers[i].peak == expected[i].peak);
      CHECK(ledgers[i].by_category == expected[i].by_category);
    }
    AllocatorSettings s;
    s.expandable_segments = seed % 3 == 1;
    check_same_everywhere(flat, all, s, 30 * kMiB);
  }
  if (sample.has_all()) CHECK(loops > 500);
  CHECK(written < expanded / 2);
}

TEST_CASE("stretches between marks that come again are a loop, whoever wrote them") {
  // a pipeline: so many micro-batches in flight, each with tensors of its own
  for (const std::int64_t in_flight : {0, 1, 4, 11}) {
    CAPTURE(in_flight);
    ProgramWriter w;
    std::mt19937_64 random(static_cast<std::uint64_t>(in_flight));
    std::vector<SiteRef> kept, passing;
    for (int i = 0; i < 60; ++i) {
      const auto bytes = static_cast<Bytes>(1 + random() % (12 * kMiB));
      (i % 3 == 0 ? kept : passing)
          .push_back(w.site({"t", {bytes}, DType::int8, bytes, Category::other, Pool::torch, 0, Holder::local}));
    }
    const auto pass = [&](bool backward, std::int64_t micro) {
      w.mark(backward ? "backward" : "forward");
      for (std::int64_t layer = 0; layer < 8; ++layer) {
        for (const SiteRef& s : passing) w.alloc(s, Index(layer), Index(micro));
        for (const SiteRef& s : kept) backward ? w.free(s, Index(layer), Index(micro)) : w.alloc(s, Index(layer), Index(micro));
        for (const SiteRef& s : passing) w.free(s, Index(layer), Index(micro));
      }
    };
    for (std::int64_t m = 0; m < 60 + in_flight; ++m) {
      if (m < 60) pass(false, m);
      if (m >= in_flight) pass(true, m - in_flight);
    }
    w.mark("after");
    w.alloc(kept[0]);
    const Program program = w.take();
    const FlatProgram flat(program), all(program, nullptr, true);
    CHECK(flat.loops.size() == 1);
    CHECK(flat.events.size() < all.events.size() * (3 * in_flight + 5) / 60);
    CHECK(flat.turn_ends == std::vector<std::size_t>{flat.events.size()});
    check_same_everywhere(flat, all, {}, 20 * kMiB);
  }
}

TEST_CASE("what is alive behind skipped turns has the last one's name") {
  const auto written = [](std::int64_t last) {
    ProgramWriter w;
    const auto t = w.site({"t", {1}, DType::int8, kMiB, Category::other, Pool::torch, 0, Holder::local});
    w.alloc(t, Index(0));
    w.repeat(
        1000,
        [&](Index i) {
          w.alloc(t, i);
          w.free(t, i - 1);
        },
        Direction::forward, 1);
    w.free(t, Index(last));
    return w.take();
  };
  const FlatProgram flat(written(1000));
  CHECK(flat.loops.size() == 1);
  CHECK(flat.events.size() < 50);
  CHECK(flat.peak == 2 * kMiB);
  const Program wrong = written(999);
  CHECK_THROWS_AS(FlatProgram{wrong}, Defect);
}

TEST_CASE("events in front of the one that fails are counted as if all turns were written down") {
  ProgramWriter w;
  const auto t = w.site({"t", {1}, DType::int8, kMiB, Category::other, Pool::torch, 0, Holder::local});
  const auto large = w.site({"large", {1}, DType::int8, kGiB, Category::other, Pool::torch, 0, Holder::local});
  w.repeat(5000, [&](Index i) {
    w.mark("turn");
    w.alloc(t, i);
    w.free(t, i);
  });
  w.alloc(large);
  AllocatorSettings s;
  s.device_limit = 100 * kMiB;
  CHECK(replay(FlatProgram(w.take()), s).failed_event == 10000);
}
