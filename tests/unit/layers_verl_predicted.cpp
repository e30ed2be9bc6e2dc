// verl's actors with a block of multi-token prediction under Megatron against what whole steps of them reached
// (tests/data/executed_verl_predicted{,_linear}.jsonl, made by benchmarks/oracle/execute_verl_predicted{,_linear}.py).
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
#include "qwen35_runs.hpp"
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

/// What every run says.
Json trainer_of(const Json& run, bool native) {
  Json out{{"engine", "megatron"},
           {"models_by", native ? "megatron-bridge" : "mbridge"},
           {"mtp_layers", 1},
           {"mtp_runs", run["runs"]},
           {"kernels", "transformer_engine"},
           {"micro_batches", 1},
           {"precision", {{"storage", "bf16"}, {"compute", "bf16"}, {"reduce", "fp32"}}},
           {"rotary_fusion", false},
           {"jit_fuser", false},
           {"entropy_loss", run["entropy"]},
           {"distributed_optimizer", false},
           {"attention", run["packed"].get<bool>() ? "flash" : "fused"},
           {"recompute", run["recompute"]}};
  const auto tokens = run["tokens"].get<std::int64_t>(), sequences = run["sequences"].get<std::int64_t>();
  if (run["packed"])
    out["tokens_per_micro_batch"] = tokens * sequences;
  else
    out.update({{"sequences_per_micro_batch", sequences}, {"sequence_tokens", tokens}});
  return out;
}

TrainingCase case_of(const Json& trainer, const Json& config) {
  const Json job{{"framework", "verl 0.10"}, {"model", "tiny"}, {"trainer", trainer}};
  return read_training_case(job.dump(), config.dump(), Catalog::builtin());
}

TrainingCase mimo_case(const Json& run) {
  const auto tensor = run["tensor"].get<int>();
  const bool native = run["native"].get<bool>();
  Json trainer = trainer_of(run, native);
  trainer.update({{"layout", fmt::format("d1t{}{}", tensor, run["first"].get<bool>() ? "" : "p2")},
                  {"sequence_parallel", tensor > 1},
                  {"gradient_accumulation_fusion", native},
                  {"activation_fusion", false}});
  return case_of(trainer, config_of(run));
}

TrainingCase qwen35_case(const Json& run) {
  const bool mbridge = run["bridge"] == "mbridge";
  Json trainer = trainer_of(run, !mbridge);
  trainer.update({{"layout", qwen35_layout(run)},
                  {"sequence_parallel", run["sequence_parallel"]},
                  {"gradient_accumulation_fusion", run["fused"]},
                  {"deallocate_outputs", true},
                  {"activation_fusion", true}});
  if (run["experts"].get<int>() > 0)
    trainer.update(
        {{"permute_fusion", true}, {"shared_expert_overlap", mbridge}, {"router_dtype", "fp32"}, {"router_aux_loss", false}});
  if (const Json& images = run["images"]; !images.empty()) {
    const std::int64_t patch = run["patch"];
    trainer["vision"] = {
        {"images", 1}, {"height", images[0][0].get<std::int64_t>() * patch}, {"width", images[0][1].get<std::int64_t>() * patch}};
  }
  TrainingCase c = case_of(trainer, qwen35_config(run));
  c.trainer.sequence_tokens = run["tokens"];
  return c;
}

/// Experts that are computed again keep more of their last tokens than is said, so that levels above that differ; and of padded
/// sequences on several ranks a part of the hidden states is missing at the highest moment.
double allowed(const Json& run) {
  if (run.value("experts", 0) > 0 && run["recompute"] == "full") return 0.033;
  return !run["packed"].get<bool>() && run["tensor"] > 1 ? 0.01 : 0.006;
}

/// How far the worst level is from what ran, and how many rows there were.
std::pair<int, double> judge(const char* file, TrainingCase (*make)(const Json&)) {
  std::ifstream in(std::string(OOMPLAN_SOURCE_DIR "/tests/data/") + file);
  REQUIRE(in.good());
  int rows = 0;
  double worst = 0;
  for (std::string line; std::getline(in, line); ++rows) {
    const Json row = Json::parse(line);
    CAPTURE(row["run"].dump());
    const TrainingCase c = make(row["run"]);
    const bool first = row["run"]["first"];
    const MegatronStage stage = make_megatron_stage(*c.architecture, c.trainer, first ? 0 : 1, 1, {.log_probs = true});
    CHECK(stage.weights == 2 * row["parameters"].get<Bytes>());
    if (!first) continue;
    folds_as_it_expands(stage, 3);
    const TrainingFigures f = training_figures(c);
    std::vector<std::pair<const char*, Bytes>> levels{{"forward", f.forward - f.optimizer + stage.averaged},
                                                      {"backward", f.backward - f.optimizer + stage.averaged}};
    if (!row["run"]["gradients"]) levels = {{"forward", forward_alone(stage)}};
    for (const auto& [phase, level] : levels) {
      const auto ran = row["peaks"][phase].get<double>();
      const double apart = (static_cast<double>(level) - ran) / ran;
      CAPTURE(phase);
      CAPTURE(level);
      CAPTURE(ran);
      CAPTURE(apart);
      CHECK(std::fabs(apart) < allowed(row["run"]));
      if (allowed(row["run"]) < 0.01) worst = std::max(worst, std::fabs(apart));
    }
  }
  return {rows, worst};
}

TEST_CASE("steps of verl's actors with multi-token prediction are met") {
  const auto [rows, worst] = judge("executed_verl_predicted.jsonl", mimo_case);
  CHECK(rows == 40);
  MESSAGE(rows << " steps, worst level off by " << fmt::format("{:.3f} %", 100 * worst));
}

TEST_CASE("steps of verl's Qwen3.5 with multi-token prediction are met") {
  const auto [rows, worst] = judge("executed_verl_predicted_linear.jsonl", qwen35_case);
  CHECK(rows == 74);
  MESSAGE(rows << " steps, worst level off by " << fmt::format("{:.3f} %", 100 * worst));
}

}  // namespace
