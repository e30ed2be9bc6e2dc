// A search over Megatron's settings: what its axes hold, that its bound is one, and that what it finds fits as promised.
#include <algorithm>
#include <set>

#include "catalog/catalog.hpp"
#include "estimate_jobs.hpp"
#include "job/knobs.hpp"
#include "job/validate.hpp"
#include "search/megatron_search.hpp"

using namespace oomplan;

namespace {

const std::string kDense =
    "oomplan: 1\nframework: torch\ngpus: 16 x H100-80GB\nmodel: Qwen/Qwen3-8B\nsequences_per_step: 64\ntrainer: {engine: "
    "megatron, layout: d4t2p2, "
    "sequence_parallel: true, sequences_per_micro_batch: 1, sequence_tokens: 4k, cross_entropy: te}\n";
const std::string kExperts =
    "oomplan: 1\nframework: torch\ngpus: 32 x H100-80GB\nmodel: Qwen/Qwen3-30B-A3B\nsequences_per_step: 256\ntrainer: {engine: "
    "megatron, layout: d32e8, "
    "sequences_per_micro_batch: 1, sequence_tokens: 4k, router_dtype: fp32, cross_entropy: te}\n";

Job large_job() {
  return job_of(
      "oomplan: 1\nframework: torch\ngpus: 1024 x H100-80GB\nmodel: deepseek-ai/DeepSeek-V3\nsequences_per_step: 4096\ntrainer: "
      "{engine: "
      "megatron, layout: d64p16e64, first_stage_layers: 4, last_stage_layers: 1, sequences_per_micro_batch: 1, "
      "sequence_tokens: 4k, router_dtype: fp32, cross_entropy: te, recompute: full}\n");
}

Job at_point(const Job& from, const MegatronAxes& axes, const MegatronCandidate& c) {
  Job out = from;
  put_megatron(axes.splits[c.split], axes.ranks[c.ranks], axes.recompute[c.recompute], c.data,
               megatron_batch(from, from.roles[0], {}), out.roles[0].trainer);
  return out;
}

Bytes needed(const Estimate& e) {
  Bytes most = 0;
  for (const auto& gpu : e.gpus)
    for (const auto& phase : gpu.phases) most = std::max(most, phase.usage.capacity_needed);
  return most;
}

}  // namespace

TEST_CASE("megatron search: the bound is below the estimate at every point, and every point is a valid job") {
  for (const auto& text : {kDense, kExperts}) {
    const Job job = job_of(text);
    const Catalog& catalog = Catalog::builtin();
    MegatronBound bound(job, job.roles[0], catalog);
    const MegatronAxes axes = megatron_axes(job, job.roles[0], {});
    const MegatronJudged judged =
        judge_megatron(axes, bound, job.cluster.gpus, megatron_batch(job, job.roles[0], {}), Bytes{1} << 60, {});
    REQUIRE(judged.candidates.size() > 500);
    CHECK(judged.points == static_cast<std::int64_t>(judged.candidates.size()));
    const std::size_t step = judged.candidates.size() / 24;
    double widest = 0;
    for (std::size_t i = 0; i < judged.candidates.size(); i += step) {
      const Job there = at_point(job, axes, judged.candidates[i]);
      CAPTURE(to_yaml(there));
      const auto wrong = problems(there, catalog);
      CHECK_MESSAGE(wrong.empty(), (wrong.empty() ? "" : to_text(wrong[0])));
      const Bytes exact = needed(estimate_quick(there));
      CHECK(judged.candidates[i].least <= exact);
      widest = std::max(widest, static_cast<double>(exact) / static_cast<double>(judged.candidates[i].least));
    }
    CHECK(widest < 4);  // a bound that says something
  }
}

TEST_CASE("megatron search: all axes are searched") {
  const Job job = job_of(kExperts);
  const MegatronAxes axes = megatron_axes(job, job.roles[0], {});
  std::set<std::int64_t> t, p, c, e, u, v;
  std::set<Recompute> recompute;
  for (const auto& r : axes.ranks) t.insert(r.tensor), c.insert(r.context), e.insert(r.expert), u.insert(r.expert_tensor);
  for (const auto& s : axes.splits) p.insert(s.pipeline), v.insert(s.chunks);
  for (const auto& r : axes.recompute) recompute.insert(r.what);
  CHECK(t == std::set<std::int64_t>{1, 2, 4, 8});      // 32 heads, 4 groups repeated
  CHECK(p == std::set<std::int64_t>{1, 2, 4, 8, 16});  // 48 layers; 32 stages would leave some without
  CHECK(c.size() > 2);
  CHECK(e == std::set<std::int64_t>{1, 2, 4, 8, 16, 32, 64, 128});
  CHECK(u == std::set<std::int64_t>{1, 2, 4, 8});
  CHECK(v.contains(3));
  CHECK(recompute.size() == 3);
  for (const auto& r : axes.ranks) CHECK((r.tensor == 1 || r.sequence_parallel));  // experts train so only
  // 61 layers on 16 stages: none is even
  const Job large = large_job();
  bool uneven = false;
  for (const auto& s : megatron_axes(large, large.roles[0], {}).splits)
    uneven = uneven || (s.pipeline == 16 && s.first == 4 && s.last == 1);
  CHECK(uneven);
}

TEST_CASE("megatron search: what is found fits, is told by its changes, and leaves fixed keys alone") {
  const Job job = job_of(kDense);
  const Found found = search(job, {}, 3);
  CHECK(found.judged > 500);
  REQUIRE(found.best.size() == 3);
  for (const auto& c : found.best) {
    CHECK(c.estimate.fits());
    CHECK(c.relative_step_time >= 1);
    const Job again = job_of(kDense, c.overrides);
    CHECK(to_yaml(again) == to_yaml(c.job));
    for (const auto& change : c.changes) CHECK(change.effect <= Effect::speed);  // the batch stays
  }
  // micro-batches of a rank that the job states hold its data ranks, or the batch would be another one
  Job stated = job;
  stated.roles[0].trainer.micro_batches = 16;
  for (const auto& c : search(stated, {}, 3).best) CHECK(c.job.roles[0].trainer.layout.data == 4);
  Space held;
  held.fixed = {"trainer.layout", "virtual_stages"};
  for (const auto& c : search(job, held, 5).best) {
    CHECK(get(c.job, "trainer.layout") == get(job, "trainer.layout"));
    CHECK(get(c.job, "trainer.virtual_stages") == "1");
  }
}

TEST_CASE("megatron search: what cannot fit is said") {
  const Job job = job_of(
      "oomplan: 1\nframework: torch\ngpus: 2 x H100-80GB\nmodel: meta-llama/Llama-3.1-70B\ntrainer: {engine: "
      "megatron, layout: t2, sequence_parallel: true, sequences_per_micro_batch: 1, sequence_tokens: 4k, "
      "micro_batches: 8}\n");
  const Found found = search(job, {}, 3);
  CHECK(found.best.empty());
  REQUIRE(found.limits.size() == 1);
  CHECK(found.limits[0].missing > 100 * kGiB);
  Space aim;
  aim.maximise = "tokens";
  CHECK_THROWS_AS(search(job, aim, 1), InputError);
}

TEST_CASE("megatron search: 1,024 GPUs of a DeepSeek-V3") {
  const Job job = large_job();
  MegatronBound bound(job, job.roles[0], Catalog::builtin());
  const MegatronJudged judged = judge_megatron(megatron_axes(job, job.roles[0], {}), bound, job.cluster.gpus,
                                               megatron_batch(job, job.roles[0], {}), 79 * kGiB, {});
  CHECK(judged.points > 10'000);
  CHECK(!judged.candidates.empty());
  CHECK(judged.smallest.least < 20 * kGiB);
}

TEST_CASE("megatron examples: DeepSeek-V3 has a class of GPUs for every stage, and the first holds most") {
  std::ostringstream text;
  text << std::ifstream(std::filesystem::path(OOMPLAN_SOURCE_DIR) / "examples/megatron_deepseek_v3.yaml").rdbuf();
  const Estimate e = estimate_quick(job_of(text.str()));
  REQUIRE(e.gpus.size() == 16);
  CHECK(e.gpus.front().gpus.front() == 0);  // the fullest one is told first
}
