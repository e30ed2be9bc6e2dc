// What a process keeps on a GPU that is too small for all that its allocator would keep.
#include <doctest/doctest.h>

#include <algorithm>

#include "estimate_jobs.hpp"

using namespace oomplan;

namespace {

Bytes most_of(const Estimate& e, Bytes Usage::* figure) {
  Bytes most = 0;
  for (const auto& gpu : e.gpus)
    for (const auto& phase : gpu.phases) most = std::max(most, phase.usage.*figure);
  return most;
}

}  // namespace

TEST_CASE("limited: where blocks must be given back, reserved and device are those of this GPU") {
  Job job = job_of(
      "oomplan: 1\nmodel: qwen2.5-0.5b\nframework: torch\ngpus: 2 x H100-80GB\n"
      "trainer: {engine: fsdp2, layout: d2, sequences_per_micro_batch: 4, sequence_tokens: 512, micro_batches: 2, "
      "precision: {storage: bf16, compute: bf16, reduce: bf16}}\n");
  const Estimate roomy = estimate(job);
  const Bytes device = most_of(roomy, &Usage::device), needed = most_of(roomy, &Usage::capacity_needed);
  REQUIRE(device > needed + 64 * kMiB);
  job.cluster.others = roomy.gpus.at(0).usable - (device + needed) / 2;
  const Estimate limited = estimate(job);
  CHECK(limited.fits());
  CHECK(most_of(limited, &Usage::device) <= limited.gpus.at(0).usable);
  CHECK(most_of(limited, &Usage::reserved) < most_of(roomy, &Usage::reserved));
  CHECK(most_of(limited, &Usage::allocated) == most_of(roomy, &Usage::allocated));
  CHECK(most_of(limited, &Usage::capacity_needed) == needed);
}
