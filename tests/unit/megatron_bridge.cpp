// Peaks that Megatron-Bridge published of Moonlight-16B on 8 H100 (NVIDIA-NeMo/Megatron-Bridge 067f987d,
// skills/nemo-mbridge-perf-activation-recompute/card.yaml), of its recipe moonlight_16b_pretrain_8gpu_h100_bf16_config.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "estimate_jobs.hpp"
#include "job/knobs.hpp"

namespace {

using namespace oomplan;

const std::string kMoonlight =
    "oomplan: 1\nframework: torch\ngpus: 8 x H100-80GB\nmodel: moonshotai/Moonlight-16B-A3B\ntrainer: {engine: megatron, layout: "
    "d4t2e8, sequence_parallel: true, sequences_per_micro_batch: 1, sequence_tokens: 4k, micro_batches: 1, precision: {reduce: "
    "bf16}, precision_aware_optimizer: true, fp32_masters: true, exp_avg_dtype: bf16, exp_avg_sq_dtype: bf16, te_release: "
    "'2.14', overlap_grad_reduce: true, cross_entropy: te, router_dtype: fp32, rotary_fusion: false, shared_expert_overlap: "
    "true, recompute: ";

/// What torch counts as allocated at most, in thousand million bytes.
double highest(const std::string& modules) {
  const Job job = job_of(kMoonlight + (modules.empty() ? "none}\n" : "selective, recompute_modules: [" + modules + "]}\n"));
  Bytes out = 0;
  for (const auto& gpu : estimate(job).gpus)
    for (const auto& moment : gpu.phases) out = std::max(out, moment.usage.allocated);
  return static_cast<double>(out) / 1e9;
}

TEST_CASE("megatron: published peaks of Moonlight") {
  struct Published {
    std::string modules;
    double peak = 0, tolerance = 0;  ///< in per cent
  };
  const std::vector<Published> published{{"", 36.618, 0.9},
                                         {"core_attn", 36.614, 0.9},
                                         {"mla_up_proj", 35.902, 0.3},
                                         {"mla_up_proj, mlp", 35.917, 0.3},
                                         {"moe_act", 35.941, 0.3},
                                         {"layernorm, moe_act", 35.949, 0.3}};
  for (const Published& p : published) {
    CAPTURE(p.modules);
    CHECK(std::abs(highest(p.modules) / p.peak - 1) < p.tolerance / 100);
  }
}

Bytes last_level(const std::string& change, const std::string& value) {
  Job job = job_of(kMoonlight + "none}\n");
  if (!change.empty()) set(job, "trainer." + change, value);
  const Estimate e = estimate_quick(job);
  return e.gpus.at(0).phases.back().usage.allocated;
}

TEST_CASE("megatron: masters of its own cost what the states of the step are") {
  const Bytes own = last_level("", "");
  constexpr std::int64_t kShare = 1'999'500'000;  // 8 experts whole, a quarter of the rest: to a thousandth
  const auto about = [](Bytes got, Bytes want) {
    return std::abs(static_cast<double>(got - want)) < 0.002 * std::abs(static_cast<double>(want));
  };
  CHECK(about(own - last_level("fp32_masters", "false"), 6 * kShare));  // 2 of a master, and gradients in 4
  CHECK(about(last_level("precision.reduce", "fp32") - own, -4 * kShare + 2 * 2'599'700'000));  // twice the buffer, no copy
}

TEST_CASE("megatron: states in bf16 stay so from 2.14 on") {
  Job job = job_of(kMoonlight + "none}\n");
  const auto at_step = [&] {
    const Estimate e = estimate_quick(job);
    return e.gpus.at(0).phases.back().usage.allocated;
  };
  const Bytes now = at_step();
  set(job, "trainer.te_release", "2.11");
  CHECK(at_step() - now > Bytes{14'000'000'000});  // 8 bytes of every number of the experts
  set(job, "trainer.exp_avg_sq_dtype", "fp32");
  const Bytes mixed = at_step();
  set(job, "trainer.te_release", "2.14");
  CHECK(at_step() == mixed);  // one in fp32: no kernel for both
}

}  // namespace
