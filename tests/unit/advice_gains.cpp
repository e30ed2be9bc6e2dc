// Advice: every gain that is told is what a second estimate of the changed job shows.
#include <set>

#include "advice/remedies.hpp"
#include "advice/trial.hpp"
#include "estimate_jobs.hpp"
#include "job/knobs.hpp"
#include "sampled.hpp"

using namespace oomplan;

namespace {

/// Jobs that do not fit, each for another reason.
std::vector<NamedJob> tight_jobs() {
  const std::string grpo = "oomplan: 1\nprompt_tokens: 1k\nresponse_tokens: 8k\n";
  return {
      {"logits of a long micro-batch",
       grpo + "gpus: 8 x H100-80GB\nmodel: qwen2.5-7b\nframework: verl 0.9.0\nrollout: {engine: vllm 0.11.0, layout: d4}\nactor: "
              "{layout: d4, tokens_per_micro_batch: 128k}\nref: {beside: actor}\n"},
      {"nothing is recomputed",
       grpo + "gpus: 8 x H100-80GB\nmodel: qwen2.5-7b\nrollout: {engine: sglang 0.5.10, layout: d4, mem_fraction_static: "
              "0.8}\nactor: {layout: d4, tokens_per_micro_batch: 64k, recompute: none}\n"},
      {"states of a large model", grpo + "gpus: 8 x A100-80GB\nmodel: qwen2.5-32b\nframework: verl 0.9.0\nrollout: {engine: vllm "
                                         "0.11.0, layout: d2t4, gpu_memory_utilization: 0.6}\nactor: {beside: rollout, layout: "
                                         "d8, tokens_per_micro_batch: 16k, offload: []}\nref: {beside: actor}\n"},
      {"a full model on every GPU at load",
       grpo + "gpus: 16 x H100-80GB\nmodel: qwen2.5-72b\nrollout: {engine: sglang 0.5.10, layout: d2t4, mem_fraction_static: "
              "0.8}\nactor: {layout: d8, tokens_per_micro_batch: 16k}\n"},
      {"fine-tuning",
       "oomplan: 1\nframework: torch\ngpus: 2 x A100-80GB\nmodel: llama-3.1-8b\ntrainer: {layout: d2, sequence_tokens: 8k, "
       "sequences_per_micro_batch: 8, recompute: none, precision: {storage: fp32}}\n"},
      {"a server that takes too much",
       "oomplan: 1\ngpus: 1 x H100-80GB\nothers: 12GiB\nmodel: qwen2.5-7b\nserver: {engine: vllm 0.11.0, layout: d1, "
       "gpu_memory_utilization: 0.95, max_model_len: 8k}\n"},
  };
}

}  // namespace

TEST_CASE("the gain of every remedy is confirmed to the byte by an estimate of the job with that override") {
  Sample jobs(4);
  for (const auto& j : tight_jobs()) {
    if (!jobs.takes()) continue;
    INFO(j.name);
    const Job job = job_of(j.text);
    const Estimate before = estimate(job);
    CHECK_FALSE(before.fits());
    for (const Effect allow : {Effect::free, Effect::speed, Effect::numerics, Effect::semantics}) {
      const auto remedies = advise(job, allow);
      if (allow >= Effect::speed) CHECK_FALSE(remedies.empty());
      std::set<std::string> keys;
      for (std::size_t i = 0; i < remedies.size(); ++i) {
        const Remedy& r = remedies[i];
        INFO(r.key << "=" << r.to);
        CHECK(r.effect <= allow);
        CHECK(r.gain > 0);
        CHECK_FALSE(r.text.empty());
        CHECK(r.from == get(job, r.key));
        CHECK(keys.insert(r.key).second);
        if (i > 0) CHECK(std::pair(remedies[i - 1].fits, remedies[i - 1].gain) >= std::pair(r.fits, r.gain));
        const Estimate after = estimate(job_of(j.text, {r.key + "=" + r.to}));
        CHECK(excess_of(before) - excess_of(after) == r.gain);
        CHECK(after.fits() == r.fits);
      }
    }
  }
}

TEST_CASE("remedies beside an estimate are those of advise, without the job replayed again") {
  Sample jobs(4);
  for (const auto& j : tight_jobs()) {
    if (!jobs.takes()) continue;
    INFO(j.name);
    const Job job = job_of(j.text);
    const Remedies beside = remedies_of(job, Effect::speed, nullptr, estimate(job));
    const auto advised = advise(job, Effect::speed);
    CHECK(beside.replayed);
    REQUIRE(beside.all.size() == advised.size());
    for (std::size_t i = 0; i < advised.size(); ++i) {
      CHECK(beside.all[i].key == advised[i].key);
      CHECK(beside.all[i].to == advised[i].to);
      CHECK(beside.all[i].gain == advised[i].gain);
      CHECK(beside.all[i].fits == advised[i].fits);
    }
  }
}

TEST_CASE("a judge that may read no more says what the levels say") {
  const Job job = job_of(tight_jobs()[1].text);
  Judge judge(Catalog::builtin(), TapeStore::shared());
  judge.start(assemble(job, judge.catalog, judge.tapes), estimate(job));
  judge.most_events = 0;
  CHECK_FALSE(judge.gave_up);
  CHECK_FALSE(judge.fullest(job).has_value());
  CHECK(judge.gave_up);
  const auto sifted = sift(change_natively(job, {{"actor.recompute", "full"}}, judge.catalog), judge);
  REQUIRE(sifted);
  const auto judged = confirm(*sifted, judge);
  REQUIRE(judged);
  CHECK(judged->remedy.gain == sifted->remedy.gain);
  CHECK(judged->remedy.gain == excess_of(judge.before.levels) - excess_of(estimate_quick(*sifted->changed.job)));
}
