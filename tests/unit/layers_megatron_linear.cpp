// Qwen3.5 under Megatron as verl's bridges make it: parameters, what is kept, and whole steps that ran (ISEEKYAN/mbridge 10cb17f
// and Megatron-Bridge 0.5.2 on megatron-core 0.18.0, flash-linear-attention 0.5.0; benchmarks/oracle/execute_megatron_linear.py,
// execute_megatron_linear_context.py).
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include <fmt/format.h>

#include "estimate/figures.hpp"
#include "layers/megatron_vision.hpp"
#include "megatron_folds.hpp"
#include "qwen35_runs.hpp"
#include "training/megatron_plan.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

TrainingCase executed_case(const Json& run) {
  const bool mbridge = run["bridge"] == "mbridge", packed = run["packed"], moe = run["experts"].get<int>() > 0;
  const auto images = static_cast<std::int64_t>(run["images"].size());
  const auto sequences = run["sequences"].get<std::int64_t>(), tokens = run["tokens"].get<std::int64_t>();
  Json trainer{{"engine", "megatron"},
               {"models_by", mbridge ? "mbridge" : "megatron-bridge"},
               {"layout", qwen35_layout(run)},
               {"kernels", "transformer_engine"},
               {"sequence_parallel", run["sequence_parallel"]},
               {"micro_batches", 1},
               {"precision", {{"storage", "bf16"}, {"compute", "bf16"}, {"reduce", "fp32"}}},
               {"gradient_accumulation_fusion", run["fused"]},
               {"deallocate_outputs", run["deallocates"]},
               {"distributed_optimizer", false},
               {"rotary_fusion", false},
               {"activation_fusion", true},
               {"attention", packed ? "flash" : "fused"},
               {"recompute", run["recompute"]}};
  if (packed)
    trainer["tokens_per_micro_batch"] = tokens * sequences;
  else
    trainer.update({{"sequences_per_micro_batch", sequences}, {"sequence_tokens", tokens}});
  if (moe)
    trainer.update(
        {{"permute_fusion", true}, {"shared_expert_overlap", mbridge}, {"router_dtype", "fp32"}, {"router_aux_loss", false}});
  if (run["recompute"] == "full")
    trainer.update({{"recompute_method", run["recompute_method"]}, {"recompute_layers", run["recompute_layers"]}});
  if (images > 0) {
    const std::int64_t of_row = packed ? images : images / sequences, patch = run["patch"];
    trainer["vision"] = {{"images", of_row},
                         {"height", run["images"][0][0].get<std::int64_t>() * patch},
                         {"width", run["images"][0][1].get<std::int64_t>() * patch}};
  }
  Json job{{"framework", "verl 0.9"}, {"model", "tiny"}, {"trainer", trainer}};
  TrainingCase c = read_training_case(job.dump(), qwen35_config(run).dump(), Catalog::builtin());
  c.trainer.loop.actor_loss = false;  // Megatron's own loss
  c.trainer.megatron.loss = MegatronLoss::unfused;
  c.trainer.sequence_tokens = tokens;
  return c;
}

/// What the only chunk keeps for backward, without recomputation.
Bytes kept_bytes(const MegatronStage& stage) {
  const Tape& tape = *stage.chunks.front();
  Bytes out = 0;
  for (const TapeSite& site : tape.sites)
    if (site.saved) out += site.bytes.value(stage.counts) * tape.stations[site.station].count;
  return out;
}

/// From step to step the first layer's last recomputation keeps its input, a view of all tokens' embedding, of which a rank's
/// part is counted.
double kept_embedding(const Json& run) {
  if (run["experts"] == 0 || run["recompute"] != "full") return 0;
  const auto ranks = run["tensor"].get<double>();
  return 2 * run["hidden"].get<double>() * run["tokens"].get<double>() * run["sequences"].get<double>() * (ranks - 1) / ranks /
         run.value("context", 1);
}

/// How many steps of the file there are.
int judge(const std::string& file) {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/" + file);
  REQUIRE(in.good());
  int rows = 0;
  double worst = 0;
  for (std::string line; std::getline(in, line); ++rows) {
    const Json row = Json::parse(line);
    CAPTURE(row["run"].dump());
    const TrainingCase c = executed_case(row["run"]);
    const MegatronStage stage = make_megatron_stage(*c.architecture, c.trainer, 0, 1);
    CHECK(stage.weights == 2 * row["parameters"].get<Bytes>());
    // numbers of sequences were kept, too; of a random state that a GPU's kernel has nothing was
    const Bytes more = kept_bytes(stage) - row["saved"].get<Bytes>();
    const bool plain = row["run"]["images"].empty() && !row["run"]["packed"].get<bool>();
    if (row["run"]["recompute"] == "none") CHECK((plain ? more == 0 : std::abs(more) < 400));
    folds_as_it_expands(stage, 3);
    const TrainingFigures f = training_figures(c);
    // maps of the last tokens count beside those of the layer that runs again, which takes their place; and more stays from step
    // to step of the last recomputation than is counted, so that levels above that differ
    const bool again = row["run"]["experts"] > 0 && row["run"]["recompute"] == "full";
    for (const auto& [phase, level] : {std::pair{"forward", f.forward}, {"backward", f.backward}}) {
      const auto ran = row["peaks"][phase].get<double>() + (std::string(phase) == "backward" ? kept_embedding(row["run"]) : 0);
      const double apart = (static_cast<double>(level - (f.optimizer - stage.averaged)) - ran) / ran;
      CAPTURE(phase);
      CAPTURE(apart);
      const int sharing = row["run"]["tensor"].get<int>() * row["run"].value("context", 1);
      CHECK(std::fabs(apart) < (!again ? 0.005 : sharing >= 4 ? 0.054 : 0.015));
      if (!again) worst = std::max(worst, std::fabs(apart));
    }
  }
  MESSAGE(file << ": " << rows << " steps, worst level off by " << fmt::format("{:.3f} %", 100 * worst));
  return rows;
}

TEST_CASE("steps of Qwen3.5 under Megatron are met") { CHECK(judge("executed_megatron_linear.jsonl") == 128); }

TEST_CASE("steps of Qwen3.5 under Megatron, whose tokens several ranks share out, are met") {
  CHECK(judge("executed_megatron_linear_context.jsonl") == 40);
}

}  // namespace
