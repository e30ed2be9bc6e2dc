// What a replay adds to an estimate, to which phase, and when there is none.
#include "estimate/assemble.hpp"
#include "estimate_jobs.hpp"
#include "program/events.hpp"

using namespace oomplan;

namespace {

const std::string kVerl =
    "oomplan: 1\nframework: verl 0.9.0\nmodel: qwen3-8b\ngpus: 8 x H100-80GB\nprompt_tokens: 1k\nresponse_tokens: 4k\n"
    "actor: {engine: fsdp2, layout: d8, beside: rollout, recompute: full}\nref: {beside: actor}\n"
    "rollout: {engine: vllm 0.11.0, layout: d4t2, gpu_memory_utilization: 0.6}\n";

const Moment& phase(const Estimate& e, std::string_view name) {
  for (const auto& m : e.gpus.front().phases)
    if (m.phase == name) return m;
  FAIL("no phase " << name);
  return e.gpus.front().phases.front();
}

}  // namespace

TEST_CASE("events are counted as an expansion has them") {
  for (const auto& named : example_jobs()) {
    INFO(named.name);
    const Job job = job_of(named.text);
    TapeStore store;
    const Assembled a = assemble(job, Catalog::builtin(), store);
    for (std::size_t c = 0; c < a.classes.size(); ++c)
      for (std::size_t p = 0; p < a.classes[c].processes; ++p) {
        const Program run = write_process(a, c, p, 1);
        const auto events = static_cast<std::int64_t>(events_of(run).size());
        CHECK(count_events(run, 1'000'000'000) == events);
        CHECK(count_events(run, 10) == std::min<std::int64_t>(10, events));
      }
  }
}

TEST_CASE("a server that wakes twice is not charged with its cache and the trainer's memory at once") {
  const Job job = job_of(kVerl);
  const Estimate levels = estimate(job), replayed = estimate_replayed(job);
  const Bytes added = phase(replayed, "rollout.wake").usage.capacity_needed - phase(levels, "rollout.wake").usage.capacity_needed;
  CHECK(added >= 0);
  CHECK(added < 4 * kGiB);
  CHECK(phase(replayed, "rollout.wake").usage.device < phase(levels, "rollout.wake").usage.device + 4 * kGiB);
}

TEST_CASE("a process with millions of allocations is answered by levels, and says so") {
  const Job job = job_of(kVerl, {"actor.head=verl_rows", "response_tokens=30k", "actor.tokens_per_micro_batch=128k"});
  const Estimate levels = estimate(job), replayed = estimate_replayed(job);
  CHECK(!replayed.replayed);
  CHECK(phase(replayed, "actor.backward").usage.reserved == phase(levels, "actor.backward").usage.reserved);
  CHECK(std::any_of(replayed.notes.begin(), replayed.notes.end(),
                    [](const Note& n) { return n.text.find("is not replayed") != std::string::npos; }));
}

TEST_CASE("a padded micro-batch that no machine could hold is wrong input") {
  CHECK_THROWS_AS(job_of("oomplan: 1\nframework: torch\nmodel: qwen3-8b\ngpus: 1 x H100-80GB\n"
                         "trainer: {engine: single, layout: d1, sequences_per_micro_batch: 16m, sequence_tokens: 16m}\n"),
                  InputError);
}
