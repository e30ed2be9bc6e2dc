// Activations on the host: what executed steps held there (tests/data/executed_offload.jsonl,
// benchmarks/oracle/execute_offload.py). What they held on the device is judged with all other executed rows, by
// training_oracle.cpp.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include <oomplan/oomplan.hpp>

#include "estimate/figures.hpp"
#include "sampled.hpp"
#include "training/engine.hpp"
#include "training/player.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

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

TEST_CASE("activations on the host: their bytes are those of executed steps") {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/executed_offload.jsonl");
  REQUIRE(in.good());
  std::map<std::string, std::string> configs;
  std::size_t rows = 0, looked_at = 0;
  double worst = 0;
  for (std::string line; std::getline(in, line);) {
    const Json row = Json::parse(line);
    const std::string config = row["config"];
    if (row.contains("fields")) {
      configs[config] = row["fields"].dump();
      continue;
    }
    if (looked_at++ % kEveryCase != 0) continue;
    CAPTURE(row["id"].get<std::string>());
    const TrainingCase made = read_training_case(row["job"].dump(), configs.at(config), Catalog::builtin());
    const auto want = row["host"].get<double>();
    const double error = 100 * (static_cast<double>(host_peak(made)) - want) / want;
    CHECK(std::abs(error) < 0.05);
    worst = std::max(worst, std::abs(error));
    ++rows;
  }
  CHECK(looked_at >= 100);
  MESSAGE(rows << " rows, worst " << worst << " %");
}

/// Why a job with these settings is not estimated; "" when it is.
std::string refusal(const std::string& framework, const std::string& settings) {
  const std::string job = "oomplan: 1\nframework: " + framework + "\ngpus: 2 x A100-80GB\nmodel: qwen2.5-0.5b\n" +
                          "trainer: {precision: {storage: bf16}, sequence_tokens: 2k, sequences_per_micro_batch: 1, "
                          "micro_batches: 1, head: hf_loss, recompute: none, " +
                          settings + "}\n";
  try {
    (void)estimate(read({job, "job.yaml", {}, {}}).job);
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
  told(refusal("torch", verl), "it is verl's");
  told(refusal("verl 0.9.0", on_cpu), "under an RL framework");
  told(refusal("verl 0.9.0", verl + ", wrap_head: true"), "an output layer that is a unit");
  told(refusal("torch", "engine: fsdp2, layout: d2, offload_activations: save_on_cpu_pinned"),
       "copies of its gathered parameters");
  told(refusal("torch", on_cpu + ", padding_mask: true"), "with a padding mask");
  told(refusal("torch", on_cpu + ", lora: {rank: 8, base: nf4}"), "beside a quantised base");
}

}  // namespace
