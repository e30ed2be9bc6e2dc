// The algebra: what is folded in closed form equals what is expanded event by event, on generated programs. This compares the
// program with itself; it guards the algebra and says nothing about whether a description is right.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <tuple>
#include <vector>

#include <oomplan/program.hpp>

using namespace oomplan;

#if defined(__SANITIZE_ADDRESS__)
#define OOMPLAN_FEWER 20
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define OOMPLAN_FEWER 20
#endif
#endif
#ifndef OOMPLAN_FEWER
#define OOMPLAN_FEWER 1
#endif

namespace {

using Random = std::mt19937_64;
std::int64_t draw(Random& r, std::int64_t low, std::int64_t high) {
  return std::uniform_int_distribution<std::int64_t>(low, high)(r);
}
bool chance(Random& r, int percent) { return draw(r, 1, 100) <= percent; }

/// A random description, valid by construction: a tree whose every node says what it allocates and frees, so that each free has
/// its allocation. It is then recorded by both recorders.
struct Node {
  enum Kind { pair, keep, block, loop, walk, call, trim, pause, mark } kind = block;
  std::uint32_t site = 0;  // pair: allocated before the children and freed after them; keep: stays
  std::int64_t count = 0;  // loop
  Direction direction = Direction::forward;
  std::int64_t first = 0;
  bool escapes = false;  // loop: each turn leaves its tensor, a second loop frees them
  Direction second = Direction::forward;
  std::vector<UnitRun> runs;  // walk
  std::uint32_t definition = 0;
  std::vector<Node> children;
};

struct Description {
  std::vector<Site> sites;
  std::vector<Node> definitions;  // bodies; each takes its formal indices as identity
  Node root;
};

class Generator {
 public:
  explicit Generator(std::uint64_t seed) : random_(seed) {}
  Description make() {
    const auto definitions = draw(random_, 0, 2);
    for (std::int64_t i = 0; i < definitions; ++i) {
      in_definition_ = true;
      Node body = block(2);
      out_.definitions.push_back(std::move(body));
      in_definition_ = false;
    }
    out_.root = block(0);
    return std::move(out_);
  }

 private:
  std::uint32_t site(bool pausable = false) {
    Site s;
    s.name = "s" + std::to_string(out_.sites.size());
    s.bytes = chance(random_, 5) ? 0 : draw(random_, 1, 1000);
    s.pool = static_cast<Pool>(draw(random_, 0, kPools - 1));
    if (chance(random_, 50)) s.pool = Pool::torch;
    if (s.pool == Pool::pausable || pausable) s.pool = pausable ? Pool::pausable : Pool::driver;
    s.category = static_cast<Category>(draw(random_, 0, kCategories - 1));
    out_.sites.push_back(s);
    return static_cast<std::uint32_t>(out_.sites.size() - 1);
  }
  Node block(int depth) {
    Node n;
    n.kind = Node::block;
    const auto parts = draw(random_, 1, depth >= 3 ? 2 : 4);
    for (std::int64_t i = 0; i < parts; ++i) n.children.push_back(part(depth));
    return n;
  }
  Node part(int depth) {
    Node n;
    n.direction = chance(random_, 50) ? Direction::forward : Direction::backward;
    n.second = chance(random_, 50) ? Direction::forward : Direction::backward;
    n.first = draw(random_, -3, 3);
    const auto dice = draw(random_, 1, 100);
    if (depth >= 3 || dice <= 30) {
      n.kind = Node::pair;
      n.site = site();
      if (depth < 3 && chance(random_, 50)) n.children.push_back(block(depth + 1));
    } else if (dice <= 60) {
      n.kind = Node::loop;
      n.count = chance(random_, 10) ? 0 : draw(random_, 1, 4);
      n.escapes = chance(random_, 50);
      n.site = site();
      n.children.push_back(block(depth + 1));
    } else if (dice <= 72) {
      n.kind = Node::walk;
      n.site = site();
      const auto runs = draw(random_, 1, 3);
      for (std::int64_t i = 0; i < runs; ++i) n.runs.push_back({static_cast<int>(draw(random_, 0, 2)), draw(random_, 1, 5)});
      for (int k = 0; k < 3; ++k) n.children.push_back(block(depth + 1));
    } else if (dice <= 80 && !in_definition_ && !out_.definitions.empty()) {
      n.kind = Node::call;
      n.definition = static_cast<std::uint32_t>(draw(random_, 0, static_cast<std::int64_t>(out_.definitions.size()) - 1));
    } else if (dice <= 88) {
      n.kind = Node::trim;
    } else if (dice <= 92 && depth == 0) {
      n.kind = Node::keep;
      n.site = site();
    } else if (dice <= 96 && depth == 0) {
      n.kind = Node::pause;
      n.site = site(true);
      n.children.push_back(block(1));
    } else {
      n.kind = Node::mark;
    }
    return n;
  }
  Random random_;
  Description out_;
  bool in_definition_ = false;
};

/// The description itself: written once, for both recorders, as an engine would.
template <class Recorder>
class Describe {
 public:
  Describe(const Description& d, Recorder& r) : d_(d), r_(r) {
    for (const Site& s : d.sites) {
      if constexpr (Recorder::kWrites) {
        refs_.push_back(r.site(s));
      } else {
        refs_.push_back({static_cast<std::uint32_t>(refs_.size()), s.bytes, s.pool});
      }
    }
    for (const Node& body : d.definitions) {
      if constexpr (Recorder::kWrites) {
        written_.push_back(r.begin_definition());
        run(body, ProgramWriter::formal_a(), ProgramWriter::formal_b());
        r.end_definition();
      } else {
        PeakRecorder apart;
        Describe<PeakRecorder> inner(d, apart, refs_);
        inner.run(body, Index(0), Index(0));
        folded_.push_back(apart.span());
      }
    }
  }
  Describe(const Description& d, Recorder& r, std::vector<SiteRef> refs) : d_(d), r_(r), refs_(std::move(refs)) {}

  void run(const Node& n, Index a, Index b) {
    switch (n.kind) {
      case Node::pair: {
        r_.alloc(refs_[n.site], a, b);
        children(n, a, b);
        r_.free(refs_[n.site], a, b);
        break;
      }
      case Node::keep:
        r_.alloc(refs_[n.site], Index(keeps_++), a);
        break;
      case Node::block:
        children(n, a, b);
        break;
      case Node::loop:
        r_.repeat(
            n.count,
            [&](Index i) {
              if (n.escapes) r_.alloc(refs_[n.site], i + 2, b);
              children(n, i, b);
            },
            n.direction, n.first);
        if (n.escapes) {  // freed by another loop, in the same or the opposite order
          const std::int64_t last = n.direction == Direction::forward ? n.first + n.count - 1 : n.first - n.count + 1;
          const std::int64_t low = std::min(n.first, last), high = std::max(n.first, last);
          r_.repeat(
              n.count, [&](Index i) { r_.free(refs_[n.site], i + 2, b); }, n.second, n.second == Direction::forward ? low : high);
        }
        break;
      case Node::walk:
        walk(r_, n.runs, n.direction, [&](int before, int kind, int after, Index i) {
          // Overlap: the next unit's buffer exists while this one works, the previous one's goes when this one is done.
          if (before == kNoUnit) r_.alloc(refs_[n.site], i, b);
          if (after != kNoUnit) r_.alloc(refs_[n.site], n.direction == Direction::forward ? i + 1 : i - 1, b);
          run(n.children[static_cast<std::size_t>(kind)], i, b);
          r_.free(refs_[n.site], i, b);
        });
        break;
      case Node::call:
        if constexpr (Recorder::kWrites) {
          r_.call(written_[n.definition], a + 1, b);
        } else {
          r_.call(folded_[n.definition]);
        }
        break;
      case Node::trim:
        r_.trim();
        break;
      case Node::pause: {
        const SiteRef& ref = refs_[n.site];
        r_.alloc(ref, a, b);
        r_.pause(Pool::pausable, ref.bytes);
        children(n, a, b);
        r_.resume(Pool::pausable, ref.bytes);
        r_.free(ref, a, b);
        break;
      }
      case Node::mark:
        r_.mark("m");
        break;
    }
  }

 private:
  void children(const Node& n, Index a, Index b) {
    for (const Node& child : n.children) run(child, a, b);
  }
  const Description& d_;
  Recorder& r_;
  std::vector<SiteRef> refs_;
  std::vector<std::uint32_t> written_;
  std::vector<Span> folded_;
  std::int64_t keeps_ = 0;
};

Span folded(const Description& d) {
  PeakRecorder r;
  Describe<PeakRecorder>(d, r).run(d.root, Index(0), Index(0));
  return r.span();
}
Program written(const Description& d) {
  ProgramWriter r;
  Describe<ProgramWriter>(d, r).run(d.root, Index(0), Index(0));
  return r.take();
}

/// The levels once more, without Span: plain sums over the expanded events.
Span brute(const Program& program, std::int64_t& left) {
  Span s;
  std::int64_t live = 0;
  expand(program, [&](const Event& e) {
    if (e.kind == Program::Kind::mark) return true;
    if (e.kind == Program::Kind::trim) {
      s.trimmed = true;
      s.tail = s.cached;
      return true;
    }
    const bool adds = e.kind == Program::Kind::alloc || e.kind == Program::Kind::resume;
    const Bytes change = adds ? e.bytes : -e.bytes;
    live += e.kind == Program::Kind::alloc ? 1 : e.kind == Program::Kind::free ? -1 : 0;
    if (on_device(e.pool)) {
      s.net += change;
      if (s.net > s.peak) s.witness = s.events;
      s.peak = std::max(s.peak, s.net);
      if (e.pool == Pool::torch) s.cached += change;
      s.cached_peak = std::max(s.cached_peak, s.cached);
      s.tail = std::max(s.tail, s.cached);
    } else {
      s.host_net += change;
      s.host_peak = std::max(s.host_peak, s.host_net);
    }
    ++s.events;
    return true;
  });
  left = live;
  return s;
}

Span random_span(Random& r, int events) {
  PeakRecorder p;
  for (int i = 0; i < events; ++i) {
    if (chance(r, 15)) {
      p.trim();
    } else {
      p.add(static_cast<Pool>(draw(r, 0, kPools - 1)), draw(r, -5, 5));
    }
  }
  return p.span();
}

}  // namespace

TEST_CASE("a fold equals the expansion, in every field, on 100,000 generated programs") {
  std::int64_t events = 0, calls = 0;
  for (std::uint64_t seed = 1; seed <= 100000 / OOMPLAN_FEWER; ++seed) {
    const Description d = Generator(seed).make();
    const Program program = written(d);
    std::int64_t left = 0;
    const Span expected = brute(program, left);
    const Span fold = folded(d);
    if (!(fold == expected)) FAIL("seed " << seed << ": fold and expansion differ");
    if (seed % 10 == 0) {
      const Trace t = trace(program);
      if (!(t.span == expected)) FAIL("seed " << seed << ": trace and expansion differ");
      if (t.left != left) FAIL("seed " << seed << ": live tensors at the end");
      Bytes device = 0, host = 0, live = 0;
      for (const Bytes b : t.device_by_category) device += b;
      for (const Bytes b : t.host_by_category) host += b;
      for (const auto& row : t.live) live += row.bytes;
      if (device != expected.peak || live != expected.peak) FAIL("seed " << seed << ": the ledger does not add up to the peak");
      if (host != expected.host_peak) FAIL("seed " << seed << ": the host's ledger does not add up to its peak");
    }
    events += expected.events;
    calls += static_cast<std::int64_t>(program.definitions.size());
  }
  CHECK(events > 5000000 / OOMPLAN_FEWER);
  CHECK(calls > 10000 / OOMPLAN_FEWER);
}

TEST_CASE("then is associative under random bracketing") {
  Random r(7);
  for (int turn = 0; turn < 20000 / OOMPLAN_FEWER; ++turn) {
    std::vector<Span> row;
    const auto n = draw(r, 2, 8);
    for (std::int64_t i = 0; i < n; ++i) row.push_back(random_span(r, static_cast<int>(draw(r, 0, 6))));
    Span left;
    for (const Span& s : row) left = then(left, s);
    while (row.size() > 1) {
      const auto at = static_cast<std::size_t>(draw(r, 0, static_cast<std::int64_t>(row.size()) - 2));
      row[at] = then(row[at], row[at + 1]);
      row.erase(row.begin() + static_cast<std::ptrdiff_t>(at) + 1);
    }
    REQUIRE(row[0] == left);
    REQUIRE(then(left, Span{}) == left);
    REQUIRE(then(Span{}, left) == left);
  }
}

TEST_CASE("repeat is then, n times") {
  Random r(8);
  for (int turn = 0; turn < 20000 / OOMPLAN_FEWER; ++turn) {
    const Span s = random_span(r, static_cast<int>(draw(r, 0, 8)));
    Span sum;
    for (std::int64_t n = 0; n <= 6; ++n) {
      REQUIRE(repeat(s, n) == sum);
      sum = then(sum, s);
    }
  }
}

TEST_CASE("walk emits what an unrolled loop does") {
  Random r(9);
  for (int turn = 0; turn < 2000 / OOMPLAN_FEWER; ++turn) {
    std::vector<UnitRun> runs;
    for (auto n = draw(r, 1, 4); n > 0; --n) runs.push_back({static_cast<int>(draw(r, 0, 2)), draw(r, 1, 5)});
    const auto direction = chance(r, 50) ? Direction::forward : Direction::backward;
    // The site names the kinds that a body saw, its index the unit.
    using Seen = std::tuple<int, int, int, std::int64_t>;
    ProgramWriter w;
    std::map<std::tuple<int, int, int>, SiteRef> sites;
    std::vector<std::tuple<int, int, int>> kinds;
    walk(w, runs, direction, [&](int before, int kind, int after, Index i) {
      auto& ref = sites[{before, kind, after}];
      if (ref.bytes == 0) {
        ref = w.site({"u", {}, DType::bf16, 1, Category::other, Pool::torch, 0, Holder::local});
        kinds.emplace_back(before, kind, after);
      }
      w.alloc(ref, i);
    });
    std::vector<Seen> got, expected;
    expand(w.take(), [&](const Event& e) {
      const auto& [before, kind, after] = kinds[e.site];
      got.emplace_back(before, kind, after, e.a);
      return true;
    });
    // A run sees its own kind at its inner side, the neighbour run's kind at its outer side.
    std::vector<int> units;
    for (const auto& run : runs) units.insert(units.end(), static_cast<std::size_t>(run.count), run.kind);
    const auto n = static_cast<std::int64_t>(units.size());
    const auto at = [&](std::int64_t i) { return i < 0 || i >= n ? kNoUnit : units[static_cast<std::size_t>(i)]; };
    for (std::int64_t k = 0; k < n; ++k) {
      const bool ahead = direction == Direction::forward;
      const std::int64_t i = ahead ? k : n - 1 - k;
      expected.emplace_back(ahead ? at(i - 1) : at(i + 1), at(i), ahead ? at(i + 1) : at(i - 1), i);
    }
    REQUIRE(got == expected);
  }
}

TEST_CASE("what a description gets wrong is a Defect") {
  const Site row{"t", {4}, DType::bf16, 8, Category::other, Pool::torch, 0, Holder::local};
  const Site slept{"w", {4}, DType::bf16, 8, Category::weights, Pool::pausable, 0, Holder::resident};
  const auto ignore = [](const Event&) { return true; };
  ProgramWriter w;
  const SiteRef t = w.site(row), p = w.site(slept);
  SUBCASE("a free without an allocation") { w.free(t); }
  SUBCASE("a free of another identity") {
    w.alloc(t, Index(1));
    w.free(t, Index(2));
  }
  SUBCASE("a second free") {
    w.alloc(t);
    w.free(t);
    w.free(t);
  }
  SUBCASE("a second allocation of a live identity") {
    w.alloc(t, Index(1), Index(2));
    w.alloc(t, Index(1), Index(2));
  }
  SUBCASE("a loop that allocates one identity every turn") {
    w.repeat(2, [&](Index) { w.alloc(t); });
  }
  SUBCASE("a pause of other bytes than the pool holds") {
    w.alloc(p);
    w.pause(Pool::pausable, 7);
  }
  SUBCASE("a resume of other bytes than were paused") {
    w.alloc(p);
    w.pause(Pool::pausable, 8);
    w.resume(Pool::pausable, 7);
  }
  SUBCASE("a resume without a pause") {
    w.alloc(p);
    w.resume(Pool::pausable, 8);
  }
  SUBCASE("a pause of a paused pool") {
    w.alloc(p);
    w.pause(Pool::pausable, 8);
    w.pause(Pool::pausable, 8);
  }
  SUBCASE("a free in a paused pool") {
    w.alloc(p);
    w.pause(Pool::pausable, 8);
    w.free(p);
  }
  SUBCASE("a pause of the caching allocator") {
    w.alloc(t);
    w.pause(Pool::torch, 8);
  }
  CHECK_THROWS_AS(expand(w.take(), ignore), Defect);
}

TEST_CASE("what a writer can see at once is a Defect at once") {
  const Site row{"t", {4}, DType::bf16, 8, Category::other, Pool::torch, 0, Holder::local};
  ProgramWriter w;
  const SiteRef t = w.site(row);
  Index escaped;
  w.repeat(2, [&](Index i) { escaped = i; });
  CHECK_THROWS_AS(w.alloc(t, escaped), Defect);
  CHECK_THROWS_AS(w.alloc(t, ProgramWriter::formal_a()), Defect);
  CHECK_THROWS_AS(w.call(0), Defect);
  w.begin_definition();
  CHECK_THROWS_AS(w.begin_definition(), Defect);
  CHECK_THROWS_AS(w.take(), Defect);
  w.end_definition();
  CHECK_THROWS_AS(w.end_definition(), Defect);
}

TEST_CASE("a small program by hand: levels, tail, witness, live set") {
  // weights 100 | step: two layers save 10 each, a temporary of 30 in each; freed backward | empty_cache | sleep
  ProgramWriter w;
  const auto weights = w.site({"weights", {50}, DType::bf16, 100, Category::weights, Pool::pausable, 0, Holder::resident});
  const auto saved = w.site({"saved", {5}, DType::bf16, 10, Category::activations, Pool::torch, 0, Holder::saved_for_backward});
  const auto temp = w.site({"temp", {15}, DType::bf16, 30, Category::temporaries, Pool::torch, 0, Holder::local});
  const auto copy = w.site({"copy", {50}, DType::bf16, 100, Category::host_copy, Pool::pinned, 0, Holder::resident});
  w.mark("load");
  w.alloc(weights);
  w.mark("step");
  w.repeat(2, [&](Index i) {
    w.alloc(saved, i);
    w.alloc(temp, i);
    w.free(temp, i);
  });
  w.repeat(2, [&](Index i) { w.free(saved, i); }, Direction::backward, 1);
  w.trim();
  w.mark("sleep");
  w.alloc(copy);
  w.pause(Pool::pausable, 100);
  w.alloc(temp);
  const Program program = w.take();
  const Trace t = trace(program);
  CHECK(t.span.net == 30);
  CHECK(t.span.peak == 150);  // 100 + 2 * 10 + 30
  CHECK(t.span.witness == 5);
  CHECK(t.span.cached == 30);
  CHECK(t.span.tail == 30);
  CHECK(t.span.trimmed);
  CHECK(t.span.host_peak == 100);
  CHECK(t.span.events == 12);
  CHECK(t.phase == "step");
  REQUIRE(t.live.size() == 3);
  CHECK(t.live[0].name == "weights");
  CHECK(t.live[0].phase == "load");
  CHECK(t.live[1].name == "temp");
  CHECK(t.live[2].name == "saved");
  CHECK(t.live[2].count == 2);
  CHECK(t.live[2].bytes == 20);
  CHECK(t.left == 3);
  const auto line = timeline(program);
  REQUIRE(line.size() == 12);
  CHECK(line[5] == std::pair<std::int64_t, Bytes>{5, 150});
  CHECK(line[11].second == 30);
}
