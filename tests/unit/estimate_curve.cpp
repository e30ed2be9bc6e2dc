// How memory rises and falls in an iteration: the curve that explain() draws; and what a replay adds to an estimate.
#include "estimate/curve.hpp"

#include <map>

#include "estimate_jobs.hpp"
#include "report/curve_text.hpp"

using namespace oomplan;

namespace {

const std::string kGrpo =
    "oomplan: 1\nmodel: qwen2.5-0.5b\ngpus: 2 x H100-80GB\nprompt_tokens: 512\nresponse_tokens: 1k\n"
    "actor: {engine: fsdp2, layout: d1, tokens_per_micro_batch: 4k}\nrollout: {engine: sglang, layout: d1}\n";

/// Tensors of these sizes, one after another: positive ones are made, negative ones freed. nullptr begins a phase.
struct Move {
  const char* phase = nullptr;
  Bytes bytes = 0;
};
Program program_of(const std::vector<Move>& moves) {
  ProgramWriter w;
  std::map<Bytes, SiteRef> sites;
  for (const auto& m : moves) {
    if (m.phase != nullptr) {
      w.mark(m.phase);
      continue;
    }
    const Bytes size = std::abs(m.bytes);
    if (!sites.contains(size)) sites[size] = w.site({"t" + std::to_string(size), {}, DType::int8, size, Category::other});
    const SiteRef& site = sites[size];
    if (m.bytes > 0) w.alloc(site);
    if (m.bytes < 0) w.free(site);
  }
  return w.take();
}

}  // namespace

TEST_CASE("a stretch goes from mark to mark and begins with the level that it finds") {
  const Program run =
      program_of({{"load"}, {nullptr, 100}, {"forward"}, {nullptr, 10}, {nullptr, -10}, {"idle"}, {"backward"}, {nullptr, 30}});
  const auto all = stretches(run, 0);
  REQUIRE(all.size() == 4);
  CHECK(all[0].levels == std::vector<Bytes>{0, 100});
  CHECK(all[1].levels == std::vector<Bytes>{100, 110, 100});
  CHECK(all[2].levels == std::vector<Bytes>{100});
  CHECK(all[3].levels == std::vector<Bytes>{100, 130});
  const auto later = stretches(run, 2);
  REQUIRE(later.size() == 2);
  CHECK(later[0].phase == "idle");
  CHECK(later[1].levels == all[3].levels);
  CHECK(stretches(run, 4).empty());
}

TEST_CASE("a long stretch keeps its highest levels") {
  std::vector<Move> moves{{"load"}};
  for (Bytes i = 1; i <= 1000; ++i) {
    moves.push_back({nullptr, i});
    moves.push_back({nullptr, -i});
  }
  const auto all = stretches(program_of(moves), 0);
  REQUIRE(all.size() == 1);
  REQUIRE(all[0].levels.size() == kLevelsOfAStretch);
  CHECK(all[0].levels.back() == 1000);
  CHECK(std::is_sorted(all[0].levels.begin(), all[0].levels.end()));
}

TEST_CASE("the curve of a job is its second iteration and reaches the peak of the worst phase") {
  for (const auto& text : {kGrpo, example_jobs().front().text}) {
    const Job job = job_of(text);
    const Estimate explained = explain(job);
    for (const auto& gpu : explained.gpus) {
      REQUIRE(!gpu.curve.empty());
      CHECK(gpu.curve.front().phase.find(".load") == std::string::npos);
      const Moment& worst = gpu.phases[gpu.worst];
      Bytes highest = 0;
      for (const auto& s : gpu.curve)
        if (s.phase == worst.phase) highest = std::max(highest, *std::max_element(s.levels.begin(), s.levels.end()));
      if (worst.step.empty() && !worst.bound) CHECK(highest > 0);
    }
  }
}

TEST_CASE("a replayed estimate has the figures of an explained one, and no less than a quick one") {
  for (const auto& text : {kGrpo, example_jobs().front().text}) {
    const Job job = job_of(text);
    const Estimate quick = estimate_quick(job), replayed = estimate(job), explained = explain(job);
    CHECK(!quick.replayed);
    CHECK(replayed.replayed);
    CHECK(!replayed.explained);
    REQUIRE(replayed.gpus.size() == explained.gpus.size());
    for (std::size_t c = 0; c < replayed.gpus.size(); ++c) {
      CHECK(replayed.gpus[c].curve.empty());
      REQUIRE(replayed.gpus[c].phases.size() == explained.gpus[c].phases.size());
      for (std::size_t i = 0; i < replayed.gpus[c].phases.size(); ++i) {
        const Usage &a = replayed.gpus[c].phases[i].usage, &b = explained.gpus[c].phases[i].usage;
        CHECK(a.reserved == b.reserved);
        CHECK(a.capacity_needed == b.capacity_needed);
        CHECK(replayed.gpus[c].phases[i].live.empty());
      }
      for (const auto& gpu : quick.gpus)
        if (gpu.ranks == replayed.gpus[c].ranks)
          CHECK(gpu.phases[gpu.worst].usage.capacity_needed <=
                replayed.gpus[c].phases[replayed.gpus[c].worst].usage.capacity_needed);
    }
  }
}

TEST_CASE("a curve is drawn in columns, its stretches by letter") {
  const std::vector<Stretch> two{{"actor.forward", {0, 50, 100}}, {"actor.backward", {100, 10}}};
  const std::string plain = curve_text(two, 1000, {false, false, 60});
  CHECK(plain.find("a=actor.forward, b=actor.backward") != std::string::npos);
  CHECK(plain.find('#') != std::string::npos);
  CHECK(plain.find('\x1b') == std::string::npos);
  CHECK(curve_text(two, 50, {true, false, 60}).find('\x1b') != std::string::npos);  // above what is usable
  CHECK(curve_text({}, 1000, {}).empty());
  const std::vector<Stretch> many(90, Stretch{"x", {1}});
  for (const auto& line : {curve_text(many, 10, {false, false, 60})}) CHECK(!line.empty());
}
