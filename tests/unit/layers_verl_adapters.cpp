// Actors of verl and of Relax with adapters under Megatron against what whole steps of them reached
// (tests/data/executed_{verl,relax}_adapters.jsonl, made by benchmarks/oracle/execute_{verl,relax}_adapters.py).
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
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
  Json out{{"model_type", run["kind"]},
           {"num_hidden_layers", run["layers"]},
           {"hidden_size", run["hidden"]},
           {"num_attention_heads", run["heads"]},
           {"num_key_value_heads", run["groups"]},
           {"head_dim", run["hidden"].get<int>() / run["heads"].get<int>()},
           {"intermediate_size", run["ffn"]},
           {"vocab_size", run["vocab"]},
           {"max_position_embeddings", 4096},
           {"tie_word_embeddings", false}};
  if (run["experts"] != 0)
    out.update({{"num_experts", run["experts"]},
                {"num_experts_per_tok", run["top"]},
                {"norm_topk_prob", true},
                {"moe_intermediate_size", run["expert_ffn"]}});
  return out;
}

/// Experts are shared out among the ranks of the tensors.
std::string layout_of(const Json& run) {
  const auto tensor = run["tensor"].get<int>(), expert = std::max(tensor, run["expert"].get<int>());
  const std::string dense = fmt::format("d{}t{}", expert / tensor, tensor);
  return run["experts"] == 0 ? dense : fmt::format("attn:{}|ffn:d1t1e{}", dense, expert);
}

Json trainer_of(const Json& run) {
  Json trainer{{"engine", "megatron"},
               {"layout", layout_of(run)},
               {"kernels", "transformer_engine"},
               {"sequence_parallel", run["tensor"].get<int>() > 1},
               {"tokens_per_micro_batch", run["tokens"].get<int>() * run["sequences"].get<int>()},
               {"micro_batches", 1},
               {"precision", {{"storage", "bf16"}, {"compute", "bf16"}, {"reduce", "fp32"}}},
               {"gradient_accumulation_fusion", run["fused"]},
               {"deallocate_outputs", true},
               {"activation_fusion", false},
               {"rotary_fusion", false},
               {"jit_fuser", false},
               {"entropy_loss", run["entropy"]},
               {"distributed_optimizer", false},
               {"attention", "flash"},
               {"recompute", run["recompute"]}};
  if (run["rank"] != 0) trainer["lora"] = {{"rank", run["rank"]}, {"targets", run["targets"]}, {"format", "storage"}};
  if (run["experts"] != 0) trainer.update({{"permute_fusion", true}, {"router_dtype", "bf16"}, {"router_aux_loss", false}});
  if (run["recompute"] == "full")
    trainer.update({{"recompute_method", run["recompute_method"]}, {"recompute_layers", run["recompute_layers"]}});
  return trainer;
}
TrainingCase case_of(const Json& run, const char* framework, const Json& trainer) {
  const Json job{{"framework", framework}, {"model", "tiny"}, {"trainer", trainer}};
  return read_training_case(job.dump(), config_of(run).dump(), Catalog::builtin());
}

TrainingCase executed_case(const Json& run) {
  Json trainer = trainer_of(run);
  trainer["models_by"] = "megatron-bridge";
  if (run["head"] == "fused") trainer["cross_entropy"] = "verl_fused";
  return case_of(run, "verl 0.9", trainer);
}

TrainingCase relax_case(const Json& run) {
  Json trainer = trainer_of(run);
  trainer["entropy_loss"] = run["entropy_gradient"];
  trainer["cross_entropy"] = "slime_sliced";
  trainer["rollout_temperature"] = run["temperature"];
  trainer["recompute_loss_function"] = run["checkpoint"];
  if (run["chunk"] > 0) trainer["log_probs_chunk_size"] = run["chunk"];
  if (run["padded"]) {
    trainer["sequences_per_micro_batch"] = run["sequences"];
    trainer["sequence_tokens"] = run["tokens"];
    trainer["attention"] = "fused";  // as it was stood in for
    trainer.erase("tokens_per_micro_batch");
  }
  if (run.value("local", false))
    trainer.update({{"models_by", "megatron-bridge"},
                    {"attention", "local"},
                    {"masked_softmax_fusion", false},
                    {"attention_softmax_in_fp32", true}});
  if (run["head_chunk"] > 0) trainer["head_chunk_size"] = run["head_chunk"];
  return case_of(run, "relax 2026.08", trainer);
}

MegatronStage stage_of(const TrainingCase& c) {
  return make_megatron_stage(*c.architecture, c.trainer, 0, 1, {.log_probs = true});
}

/// What verl's reference is: the same layers without adapters.
Bytes without_adapters(Json run) {
  run["rank"] = 0;
  return forward_alone(stage_of(executed_case(run)));
}

/// Names of expert layers live otherwise where nothing is kept for backward; and the batch has a few numbers a token that are not
/// counted.
double limit_of(const Json& run, double ran) {
  const bool kept = run["gradients"] && run["recompute"] == "none";
  const double few =
      (run.value("head_chunk", 0) > 0 ? 60 : 30) * run["tokens"].get<double>() * run["sequences"].get<double>() / ran;
  return run["experts"] != 0 && !kept ? 0.04 : std::max(few, 0.001);
}

TEST_CASE("steps of verl's actors with adapters under Megatron are met") {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/executed_verl_adapters.jsonl");
  REQUIRE(in.good());
  int rows = 0;
  double worst = 0, of_experts = 0;
  for (std::string line; std::getline(in, line); ++rows) {
    const Json row = Json::parse(line);
    const Json& run = row["run"];
    CAPTURE(run.dump());
    const TrainingCase c = executed_case(run);
    const MegatronStage stage = stage_of(c);
    CHECK(stage.weights == 2 * row["parameters"].get<Bytes>());
    CHECK(stage.gradients == 4 * (row["trained"].get<Bytes>() + row["trained_experts"].get<Bytes>()));
    folds_as_it_expands(stage, 3);
    const TrainingFigures f = training_figures(c);
    std::vector<std::pair<const char*, Bytes>> levels{{"forward", f.forward - f.optimizer},
                                                      {"backward", f.backward - f.optimizer}};
    if (run["reference"])
      levels = {{"forward", without_adapters(run)}};
    else if (!run["gradients"])
      levels = {{"forward", forward_alone(stage)}};
    for (const auto& [phase, level] : levels) {
      const auto ran = row["peaks"][phase].get<double>();
      const double apart = (static_cast<double>(level) - ran) / ran, limit = limit_of(run, ran);
      CAPTURE(phase);
      CAPTURE(level);
      CAPTURE(ran);
      CAPTURE(apart);
      CHECK(std::fabs(apart) < limit);
      // the answer has one phase for both passes of log-probs
      if (run["reference"]) CHECK(forward_alone(stage) >= level);
      double& most = run["experts"] == 0 ? worst : of_experts;
      most = std::max(most, std::fabs(apart));
    }
  }
  CHECK(rows == 59);
  MESSAGE(rows << " steps, worst level off by " << fmt::format("{:.3f} %, with experts {:.3f} %", 100 * worst, 100 * of_experts));
}

/// A response has a token less than its sample, whose row of fp32 logits, and of their softmax, is counted.
double of_prompts(const Json& run, double ran) {
  const double columns = run["vocab"].get<double>() / run["tensor"].get<double>();
  return run["supervised"] ? 0 : 2 * 4 * columns * run["sequences"].get<double>() / ran;
}

TEST_CASE("steps of Relax's actors with adapters are met") {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/executed_relax_adapters.jsonl");
  REQUIRE(in.good());
  int rows = 0;
  double worst = 0, of_experts = 0;
  for (std::string line; std::getline(in, line); ++rows) {
    const Json row = Json::parse(line);
    const Json& run = row["run"];
    CAPTURE(run.dump());
    const TrainingCase c = relax_case(run);
    const MegatronStage stage = make_megatron_stage(
        *c.architecture, c.trainer, 0, 1, {.log_probs = true, .supervised = run["supervised"], .sequence = run["tokens"]});
    CHECK(stage.weights == 2 * row["parameters"].get<Bytes>());
    CHECK(stage.gradients == 4 * (row["trained"].get<Bytes>() + row["trained_experts"].get<Bytes>()));
    folds_as_it_expands(stage, 3);
    std::vector<std::pair<const char*, Bytes>> levels{{"forward", forward_alone(stage)}};
    if (run["gradients"]) {
      const PassLevels of_step = pass_levels(stage);
      levels = {{"forward", of_step.forward}, {"backward", of_step.backward}};
    }
    for (const auto& [phase, level] : levels) {
      const auto ran = row["peaks"][phase].get<double>();
      const double apart = (static_cast<double>(level) - ran) / ran;
      CAPTURE(phase);
      CAPTURE(level);
      CAPTURE(ran);
      CAPTURE(apart);
      CHECK(std::fabs(apart) < limit_of(run, ran) + of_prompts(run, ran));
      if (std::getenv("OOMPLAN_SHOW") != nullptr) MESSAGE(rows << " " << phase << " " << fmt::format("{:+.3f} %", 100 * apart));
      double& most = run["experts"] == 0 ? worst : of_experts;
      most = std::max(most, std::fabs(apart) - of_prompts(run, ran) -
                                60 * run["tokens"].get<double>() * run["sequences"].get<double>() / ran);
    }
  }
  CHECK(rows == 51);
  MESSAGE(rows << " steps, worst level off by "
               << fmt::format("{:.3f} % beside 60 bytes a token, of experts {:.3f} %", 100 * worst, 100 * of_experts));
}

}  // namespace
