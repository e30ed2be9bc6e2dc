// verl's actors with a block of multi-token prediction under Megatron against what whole steps of them reached
// (tests/data/executed_verl_predicted.jsonl, made by benchmarks/oracle/execute_verl_predicted.py).
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "estimate/figures.hpp"
#include "megatron_folds.hpp"
#include "training/megatron_plan.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

Json config_of(const Json& run) {
  return {{"model_type", "mimo"},
          {"num_hidden_layers", run["layers"]},
          {"hidden_size", run["hidden"]},
          {"num_attention_heads", run["heads"]},
          {"num_key_value_heads", run["groups"]},
          {"head_dim", run["hidden"].get<int>() / run["heads"].get<int>()},
          {"intermediate_size", run["ffn"]},
          {"vocab_size", run["vocab"]},
          {"max_position_embeddings", 4096},
          {"num_nextn_predict_layers", 1},
          {"attention_bias", true},
          {"tie_word_embeddings", false}};
}

TrainingCase executed_case(const Json& run) {
  const auto tensor = run["tensor"].get<int>();
  const bool native = run["native"].get<bool>();
  Json trainer{{"engine", "megatron"},
               {"models_by", native ? "megatron-bridge" : "mbridge"},
               {"mtp_layers", 1},
               {"layout", fmt::format("d1t{}{}", tensor, run["first"].get<bool>() ? "" : "p2")},
               {"kernels", "transformer_engine"},
               {"sequence_parallel", tensor > 1},
               {"tokens_per_micro_batch", run["tokens"].get<int>() * run["sequences"].get<int>()},
               {"micro_batches", 1},
               {"precision", {{"storage", "bf16"}, {"compute", "bf16"}, {"reduce", "fp32"}}},
               {"gradient_accumulation_fusion", native},
               {"activation_fusion", false},
               {"rotary_fusion", false},
               {"jit_fuser", false},
               {"entropy_loss", run["entropy"]},
               {"distributed_optimizer", false},
               {"attention", "flash"},
               {"recompute", run["recompute"]}};
  const Json job{{"framework", "verl 0.8"}, {"model", "tiny"}, {"trainer", trainer}};
  return read_training_case(job.dump(), config_of(run).dump(), Catalog::builtin());
}

TEST_CASE("steps of verl's actors with multi-token prediction are met") {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/executed_verl_predicted.jsonl");
  REQUIRE(in.good());
  int rows = 0;
  double worst = 0;
  for (std::string line; std::getline(in, line); ++rows) {
    const Json row = Json::parse(line);
    CAPTURE(row["run"].dump());
    const TrainingCase c = executed_case(row["run"]);
    const bool first = row["run"]["first"];
    const MegatronStage stage = make_megatron_stage(*c.architecture, c.trainer, first ? 0 : 1, 1, {.log_probs = true});
    CHECK(stage.weights == 2 * row["parameters"].get<Bytes>());
    if (!first) continue;
    folds_as_it_expands(stage, 3);
    const TrainingFigures f = training_figures(c);
    std::vector<std::pair<const char*, Bytes>> levels{{"forward", f.forward - f.optimizer},
                                                      {"backward", f.backward - f.optimizer}};
    if (!row["run"]["gradients"]) levels = {{"forward", forward_alone(stage)}};
    for (const auto& [phase, level] : levels) {
      const auto ran = row["peaks"][phase].get<double>();
      const double apart = (static_cast<double>(level) - ran) / ran;
      CAPTURE(phase);
      CAPTURE(level);
      CAPTURE(ran);
      CAPTURE(apart);
      CHECK(std::fabs(apart) < 0.004);
      worst = std::max(worst, std::fabs(apart));
    }
  }
  CHECK(rows == 26);
  MESSAGE(rows << " steps, worst level off by " << fmt::format("{:.3f} %", 100 * worst));
}

}  // namespace
