// What a replay adds to an estimate, to which phase, and when there is none.
#include "estimate/assemble.hpp"
#include "estimate/replayed_class.hpp"
#include "estimate_jobs.hpp"
#include "program/events.hpp"
#include "program/replay.hpp"

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

TEST_CASE("what no range of expandable segments on the GPU could hold is judged on one that could") {
  // eager attention: the probabilities of three sequences of 32k are one tensor of 168 GiB
  const Job job = job_of(
      "oomplan: 1\nframework: torch\nmodel: qwen2.5-0.5b\ngpus: 1 x H100-80GB\nexpandable_segments: true\n"
      "trainer: {engine: single, kernels: hf_eager, precision: {storage: fp32, compute: fp32, reduce: fp32}, "
      "sequence_tokens: 32k, sequences_per_micro_batch: 3, recompute: full}\n");
  const Estimate levels = estimate_quick(job), replayed = estimate(job);
  for (const std::string_view name : {"trainer.forward", "trainer.backward", "trainer.optimizer"}) {
    CAPTURE(name);
    CHECK(phase(replayed, name).usage.allocated >= phase(levels, name).usage.allocated);
    CHECK(phase(replayed, name).usage.capacity_needed >= phase(levels, name).usage.capacity_needed);
    CHECK(phase(replayed, name).usage.reserved >= phase(replayed, name).usage.allocated);
  }
}

TEST_CASE("a server that wakes twice is not charged with its cache and the trainer's memory at once") {
  const Job job = job_of(kVerl);
  const Estimate levels = estimate_quick(job), replayed = estimate(job);
  // the weights' wake finds what the trainer keeps reserved, the cache's wake finds it emptied
  const Bytes trainer =
      std::max(phase(replayed, "actor.forward").usage.reserved, phase(replayed, "actor.backward").usage.reserved);
  const Bytes gaps =
      trainer - std::max(phase(levels, "actor.forward").usage.reserved, phase(levels, "actor.backward").usage.reserved);
  const Bytes added = phase(replayed, "rollout.wake").usage.capacity_needed - phase(levels, "rollout.wake").usage.capacity_needed;
  CHECK(added >= 0);
  CHECK(phase(replayed, "rollout.wake").usage.capacity_needed <= phase(replayed, "rollout.wake").usage.device);
  CHECK(added >= gaps - 256 * kMiB);
  CHECK(added <= gaps + 256 * kMiB);
  const Bytes weights = phase(replayed, "rollout.load").usage.capacity_needed - phase(replayed, "ref.load").usage.capacity_needed;
  CHECK(phase(replayed, "rollout.wake").usage.device < trainer + weights + 4 * kGiB);
}

TEST_CASE("what an idle process keeps with its gaps stands beside the one that works") {
  const Job job = job_of(kVerl);
  TapeStore store;
  const Assembled a = assemble(job, Catalog::builtin(), store);
  const ClassFold& fold = a.folds.at(0);
  REQUIRE(a.classes[0].processes == 2);
  REQUIRE(estimate_quick(job).gpus.front().ranks == a.estimate.gpus[0].ranks);
  std::vector<FlatProgram> programs;
  SharedGpu gpu;
  for (std::size_t p = 0; p < 2; ++p) programs.emplace_back(write_process(a, 0, p, kReplayedMicroBatches, 2, nullptr, true));
  for (const auto& program : programs) gpu.processes.push_back({&program});
  for (const auto& turn : fold.turns) gpu.turns.push_back(turn.process);
  const SharedReplay roomy = replay(gpu, settings_of(job, a.estimate.gpus[0]));
  REQUIRE(roomy.turns.size() == fold.turns.size());
  // behind each turn the replay holds at least what the fold says; the trainer's gaps add something
  std::vector<Bytes> held(2);
  Bytes gaps = 0;
  for (std::size_t i = 0; i < fold.turns.size(); ++i) {
    const std::size_t p = fold.turns[i].process;
    CHECK(roomy.turns[i].beside >= held[1 - p]);
    gaps = std::max(gaps, roomy.turns[i].beside - held[1 - p]);
    held[p] = fold.turns[i].held;
  }
  CHECK(gaps > 0);
  // every phase takes what its highest turn takes, and no two turns of it are added up; what is shown is what this GPU lets
  // processes keep
  AllocatorSettings limited = settings_of(job, a.estimate.gpus[0]);
  limited.device_limit = a.estimate.gpus[0].usable;
  const SharedReplay here = replay(gpu, limited);
  REQUIRE(here.ok);
  const Estimate levels = estimate_quick(job), replayed = estimate(job);
  std::vector<Bytes> device(fold.phases.size()), needed(fold.phases.size());
  for (const PhaseInTurn& p : fold.in_turns) {
    const Moment& m = a.estimate.gpus[0].phases[p.phase];
    for (const auto& row : here.turns[p.turn].phases)
      if (row.phase == m.phase) device[p.phase] = std::max(device[p.phase], row.device_peak + here.turns[p.turn].beside);
    needed[p.phase] = std::max(needed[p.phase], p.level + roomy.turns[p.turn].beside);
  }
  for (std::size_t i = 0; i < fold.phases.size(); ++i) {
    const Moment& m = a.estimate.gpus[0].phases[i];
    CAPTURE(m.phase);
    CHECK(phase(replayed, m.phase).usage.device == std::max(device[i], phase(levels, m.phase).usage.device));
    CHECK(phase(replayed, m.phase).usage.capacity_needed >= phase(levels, m.phase).usage.capacity_needed);
    CHECK(phase(replayed, m.phase).usage.capacity_needed <= std::max(needed[i], phase(replayed, m.phase).usage.device));
  }
}

TEST_CASE("a process with millions of allocations is answered by levels, and says so") {
  const Job job = job_of(kVerl, {"actor.head=verl_rows", "response_tokens=30k", "actor.tokens_per_micro_batch=128k"});
  const Estimate levels = estimate_quick(job), replayed = estimate(job);
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

TEST_CASE("verl's trainer has expandable segments but for its weight update, and empties its cache first up to 0.7") {
  const auto answer = [](const std::string& release, const std::string& more = "") {
    std::string text = kVerl;
    return estimate(job_of(text.replace(text.find("0.9.0"), 5, release) + more));
  };
  for (const std::string release : {"0.7.0", "0.8.0"}) {
    CAPTURE(release);
    const Estimate switched = answer(release), always = answer(release, "expandable_segments: true\n");
    // what was loaded before the first update lies in segments of a fixed size: rests of a few of them
    const Bytes trainer = phase(switched, "actor.backward").usage.reserved;
    CHECK(std::abs(trainer - phase(always, "actor.backward").usage.reserved) < 64 * kMiB);
    // the update's buckets lie in segments of their own, from 0.8 on beside the pages that were not given back
    CHECK((phase(switched, "actor.send_weights").usage.reserved > trainer) == (release == "0.8.0"));
  }
}
