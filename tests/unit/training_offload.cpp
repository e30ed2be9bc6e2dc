// Activations on the host: what executed steps held there (tests/data/executed_offload.jsonl, executed_offload_units.jsonl,
// executed_offload_linear.jsonl and executed_stash_offload.jsonl; benchmarks/oracle/execute_offload.py, execute_offload_units.py,
// execute_offload_linear.py and execute_stash_offload.py).
// What they held on the device is judged with all other executed rows, by training_oracle.cpp.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include <oomplan/oomplan.hpp>

#include "estimate/figures.hpp"
#include "executed_rows.hpp"
#include "sampled.hpp"
#include "training/engine.hpp"
#include "training/player.hpp"

namespace {

using namespace oomplan;

/// The highest level of the host in the micro-batches of a step.
Bytes host_peak(const TrainingCase& c) {
  TrainTapes tapes;
  tapes.train = make_tape(*c.architecture, train_pass(c.trainer, c.engine, *c.architecture, false,
                                                      c.trainer.tokens_per_micro_batch, c.trainer.kernel_internals));
  const TrainPlan plan = make_plan(*c.architecture, c.trainer, c.engine, false, true, tapes, c.micro_batches);
  PeakRecorder r;
  TrainEngine<PeakRecorder> engine(r, plan, "");
  Player<PeakRecorder> player(r, *plan.train, plan.train_counts.counts, plan.train_counts.chunks, "");
  for (std::int64_t m = 0; m < c.micro_batches; ++m) {
    engine.forward(player, Index(0));
    engine.backward(player, Index(0), m == 0, m == c.micro_batches - 1);
  }
  CHECK(r.span().host_net == 0);
  return r.span().host_peak;
}

/// Compares the host's figure of every row, or every few; how many rows there are.
std::size_t judge_host(const char* file) {
  std::size_t looked_at = 0, rows = 0;
  double worst = 0;
  std::vector<ExecutedRow> executed;
  read_executed(file, executed);
  for (const auto& [row, made] : executed) {
    if (looked_at++ % kEveryCase != 0) continue;
    CAPTURE(row["id"].get<std::string>());
    const auto want = row["host"].get<double>();
    const double error = 100 * (static_cast<double>(host_peak(made)) - want) / want;
    CHECK(std::abs(error) < 0.05);
    worst = std::max(worst, std::abs(error));
    ++rows;
  }
  MESSAGE(std::string(file) << ": " << rows << " rows, worst " << worst << " %");
  return looked_at;
}

TEST_CASE("activations on the host: their bytes are those of executed steps") {
  CHECK(judge_host("executed_offload.jsonl") >= 100);
  CHECK(judge_host("executed_offload_units.jsonl") >= 24);
  CHECK(judge_host("executed_offload_linear.jsonl") >= 101);
  CHECK(judge_host("executed_stash_offload.jsonl") >= 88);
}

/// Why a job with these settings is not estimated; "" when it is.
std::string refusal(const std::string& framework, const std::string& settings) {
  const std::string job = "oomplan: 1\nframework: " + framework + "\ngpus: 2 x A100-80GB\nmodel: qwen2.5-0.5b\n" +
                          "trainer: {precision: {storage: bf16}, sequence_tokens: 2k, sequences_per_micro_batch: 1, "
                          "micro_batches: 1, head: hf_loss, " +
                          (settings.find("recompute:") == std::string::npos ? "recompute: none, " : "") + settings + "}\n";
  try {
    (void)estimate_quick(read({job, "job.yaml", {}, {}}).job);
  } catch (const InputError& e) {
    return e.what();
  }
  return {};
}

TEST_CASE("activations on the host: what does not go together is refused by name") {
  const auto told = [](const std::string& why, const std::string& part) {
    CAPTURE(why);
    CAPTURE(part);
    CHECK(why.find(part) != std::string::npos);
  };
  const std::string verl = "engine: fsdp2, layout: d2, offload_activations: verl";
  const std::string on_cpu = "engine: ddp, layout: d2, offload_activations: save_on_cpu";
  CHECK(refusal("verl 0.9.0", verl).empty());
  CHECK(refusal("torch", on_cpu).empty());
  for (const char* engine : {"ddp", "fsdp1"})
    CHECK(refusal("torch", std::string("engine: ") + engine + ", layout: d2, offload_activations: offload_wrapper").empty());
  const std::string trl = "engine: ddp, layout: d2, offload_activations: trl";
  CHECK(refusal("torch", trl).empty());
  told(refusal("verl 0.9.0", trl), "it is TRL's");
  told(refusal("torch", trl + ", recompute: full, recompute_every: 2"), "checkpoints of some layers");
  told(refusal("torch", trl + ", recompute: full, reentrant: true, lora: {rank: 8}"), "reentrant checkpoints of adapters");
  told(refusal("torch", "engine: fsdp2, layout: d2, offload_activations: trl"), "none that TRL knows");
  told(refusal("torch", "engine: ddp, layout: d2, offload_activations: torchtune"), "without each other");
  told(refusal("torch", verl), "it is verl's");
  told(refusal("verl 0.9.0", on_cpu), "under an RL framework");
  told(refusal("verl 0.8.0", verl + ", wrap_head: true"), "divides logits in place");
  told(refusal("torch", "engine: fsdp2, layout: d2, offload_activations: save_on_cpu_pinned"),
       "copies of its gathered parameters");
  told(refusal("torch", on_cpu + ", padding_mask: true"), "with a padding mask");
  told(refusal("torch", on_cpu + ", lora: {rank: 8, base: nf4}"), "beside a quantised base");
}

}  // namespace
