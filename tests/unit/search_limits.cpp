// What a search says when nothing fits, and the largest value that still does.
#include "estimate/explain.hpp"
#include "estimate_jobs.hpp"
#include "job/knobs.hpp"
#include "job/validate.hpp"

using namespace oomplan;

namespace {

const std::string kTooLarge =
    "oomplan: 1\nframework: verl 0.9.0\ngpus: 4 x A100-80GB\nmodel: qwen2.5-32b\nprompt_tokens: 1k\nresponse_tokens: 7k\n"
    "rollout: {engine: vllm 0.11.0, layout: t2, gpu_memory_utilization: 0.8}\nactor: {layout: d2, tokens_per_micro_batch: 16k, "
    "gradient_sync_every_micro_batch: true}\n";

/// Everything but these keys of the role.
std::vector<std::string> all_but(const Role& role, const std::vector<std::string>& free) {
  std::vector<std::string> out;
  for (const auto& key : keys_of(&role))
    if (std::find(free.begin(), free.end(), key) == free.end()) out.push_back(role.name + "." + key);
  return out;
}

}  // namespace

TEST_CASE("the missing bytes of a limit are those of the best estimate along its axis") {
  const Job job = job_of(kTooLarge);
  Space space;
  space.fixed = all_but(*job.role("actor"), {"tokens_per_micro_batch"});
  for (const auto& key : all_but(*job.role("rollout"), {})) space.fixed.push_back(key);
  const Found found = search(job, space, 5);
  CHECK(found.best.empty());
  CHECK(found.fitting == 0);
  REQUIRE_FALSE(found.limits.empty());
  const Limit& limit = found.limits[0];
  CHECK(limit.axis == "actor.tokens_per_micro_batch");
  CHECK(limit.phase.starts_with("actor."));
  Bytes least = Bytes{1} << 60;
  std::string phase;
  for (std::int64_t tokens = 8 * 1024; tokens <= 128 * 1024; tokens += 1024) {
    const Estimate e = estimate_quick(job_of(kTooLarge, {"actor.tokens_per_micro_batch=" + std::to_string(tokens)}));
    if (excess_of(e) >= least) continue;
    least = excess_of(e);
    phase = e.gpus[0].phases[e.gpus[0].worst].phase;
  }
  CHECK(limit.missing == least);
  CHECK(limit.phase == phase);
  CHECK_FALSE(found.smallest_gpus);  // both layouts stay as they are
}

TEST_CASE("the number of GPUs that is named fits, and no smaller one does") {
  for (const std::string& text :
       {kTooLarge,
        std::string("oomplan: 1\nframework: torch\ngpus: 1 x A100-80GB\nmodel: llama-3.1-8b\n"
                    "trainer: {layout: d1, precision: {storage: fp32}, sequence_tokens: 4k, sequences_per_micro_batch: 1}\n")}) {
    const Job job = job_of(text);
    const Found found = search(job, {}, 3);
    CHECK(found.best.empty());
    CHECK_FALSE(found.limits.empty());
    for (std::size_t i = 0; i < found.limits.size(); ++i) {
      CHECK(found.limits[i].missing > 0);
      CHECK_FALSE(found.limits[i].text.empty());
      if (i > 0) CHECK(found.limits[i - 1].missing <= found.limits[i].missing);
    }
    REQUIRE(found.smallest_gpus);
    Space space;
    space.gpus = *found.smallest_gpus;
    const Found larger = search(job, space, 1);
    REQUIRE(larger.best.size() == 1);
    CHECK(explain(job_of(text, larger.best[0].overrides)).fits());
    for (std::int64_t n = job.cluster.gpus + 1; n < *found.smallest_gpus; ++n) {
      space.gpus = n;
      CHECK(search(job, space, 1).best.empty());
    }
  }
}

TEST_CASE("the largest value that a search finds is followed by one that does not fit") {
  struct Aim {
    std::string name, key;
    double step;
  };
  const std::string text = to_yaml(default_job("qwen-7b", 8).job);
  for (const Aim& aim :
       {Aim{"tokens", "actor.tokens_per_micro_batch", 1024}, Aim{"fraction", "rollout.mem_fraction_static", 0.01},
        Aim{"length", "response_tokens", 1024}, Aim{"concurrency", "rollout.concurrency", 8}}) {
    INFO(aim.name);
    Space space;
    space.maximise = aim.name;
    space.min_probability = 0;  // the largest that fits at all
    const Found found = search(job_of(text), space, 2);
    REQUIRE_FALSE(found.best.empty());
    const Candidate& best = found.best[0];
    CHECK(best.estimate.fits());
    if (found.best.size() > 1) {  // the next smaller one
      CHECK(get(found.best[1].job, aim.key) != get(best.job, aim.key));
    }
    double value = 0;
    if (aim.name == "tokens") value = static_cast<double>(best.job.role("actor")->trainer.tokens_per_micro_batch);
    if (aim.name == "fraction") value = best.job.role("rollout")->server.memory_fraction;
    if (aim.name == "length") value = static_cast<double>(best.job.response_tokens);
    if (aim.name == "concurrency") value = static_cast<double>(best.job.role("rollout")->server.concurrency);
    const double next = value + aim.step;
    Job more = best.job;
    for (auto& r : more.roles) {
      if (aim.name == "tokens" && !r.serves()) r.trainer.tokens_per_micro_batch = static_cast<std::int64_t>(next);
      if (aim.name == "fraction" && r.serves()) r.server.memory_fraction = next;
      if (aim.name == "concurrency" && r.serves()) r.server.concurrency = static_cast<std::int64_t>(next);
      if (aim.name == "length" && !r.serves())
        r.trainer.tokens_per_micro_batch = std::max(
            r.trainer.tokens_per_micro_batch, round_up(more.prompt_tokens + static_cast<std::int64_t>(next), std::int64_t{1024}));
    }
    if (aim.name == "length") more.response_tokens = static_cast<std::int64_t>(next);
    const bool refused = !problems(more, Catalog::builtin()).empty();
    TapeStore store;
    const auto enough = [&] {
      const Estimate e = explain_worst(more, Catalog::builtin(), store);
      return e.fits() && (aim.name != "concurrency" || e.servers[0].shortage.empty());
    };
    CHECK((refused || !enough()));
  }
}

TEST_CASE("what cannot be maximised is said") {
  Space space;
  space.maximise = "speed";
  CHECK_THROWS_AS(search(default_job("qwen-7b", 8).job, space), InputError);
  space.maximise = "fraction";
  for (const NamedJob& job : example_jobs())
    if (job.name == "sft_torch.yaml") CHECK_THROWS_AS(search(job_of(job.text), space), InputError);  // no server
}

TEST_CASE("a job that the search cannot change is refused by name") {
  const std::string text =
      "oomplan: 1\ngpus: 8 x H100-80GB\nmodel: qwen2.5-0.5b\nprompt_tokens: 512\nresponse_tokens: 512\n"
      "rollout: {engine: sglang 0.5.10, layout: d2, mem_fraction_static: 0.5}\nactor: {layout: d4, tokens_per_micro_batch: 4k}\n"
      "ref: {layout: d2, tokens_per_micro_batch: 4k}\n";
  CHECK(estimate_quick(job_of(text)).fits());
  CHECK_THROWS_AS(search(job_of(text)), InputError);
}
