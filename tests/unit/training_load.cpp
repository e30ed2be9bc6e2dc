// How FSDP1 is built, by hand.
#include <doctest/doctest.h>

#include "estimate_jobs.hpp"

using namespace oomplan;

namespace {

const Moment& loading(const Estimate& e) {
  for (const Moment& m : e.gpus.at(0).phases)
    if (m.phase == "trainer.load") return m;
  FAIL("there is no phase of loading");
  return e.gpus[0].phases[0];
}

/// Levels of parameters alone: without workspaces and buffers.
Bytes parameters_at_load(const Job& job) {
  Bytes level = loading(estimate(job)).usage.allocated;
  for (const Site& site : program(job, "trainer").sites)
    if (site.name == "trainer.cublas_workspaces" || site.name == "trainer.buffers") level -= site.bytes;
  return level;
}

std::string job_on(int gpus, const std::string& settings) {
  return "oomplan: 1\nmodel: qwen2.5-0.5b\nframework: torch\ngpus: " + std::to_string(gpus) +
         " x H100-80GB\ntrainer: {engine: fsdp1, layout: d" + std::to_string(gpus) +
         ", sequences_per_micro_batch: 1, sequence_tokens: 64, micro_batches: 1, precision: {storage: bf16, compute: bf16, "
         "reduce: bf16}" +
         settings + "}\n";
}

}  // namespace

TEST_CASE("load: FSDP1's root comes last, whole, flat and cut at once") {
  // Qwen2.5 0.5B: 494,032,768 parameters, of which the tied embedding (151,936 x 896) and the last norm are the root's
  constexpr Bytes kAll = 494'032'768, kRoot = 151'936 * 896 + 896;
  const Job job = job_of(job_on(2, ""));
  // two bytes each: half of all on this rank, and the root twice
  CHECK(parameters_at_load(job) == kAll + 2 * 2 * kRoot);
  // a layer's 29.8 MB came and went, whole and flat; the root's tensors are too large for what that left
  const Usage usage = loading(explain(job)).usage;
  CHECK(usage.reserved > usage.allocated + 3 * (kAll - kRoot) / 24);
}

TEST_CASE("load: on one rank the flat parameter stays, and CPUOffload leaves none") {
  constexpr Bytes kAll = 494'032'768, kRoot = 151'936 * 896 + 896;
  CHECK(parameters_at_load(job_of(job_on(1, ""))) == 2 * kAll + 2 * kRoot);
  CHECK(parameters_at_load(job_of(job_on(2, ", cpu_offload_policy: true"))) == 2 * 2 * kRoot + kRoot);
}
