// Layers that slime brings itself, whole steps of slime's specifications that ran (slime 624b824a on the Megatron-LM of its
// image; benchmarks/oracle/execute_slime_layers.py).
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

/// The checkpoint's config.json.
Json config_of(const Json& run) {
  Json out{{"model_type", run["kind"]},
           {"num_hidden_layers", run["layers"]},
           {"hidden_size", run["hidden"]},
           {"num_attention_heads", run["heads"]},
           {"num_key_value_heads", run["groups"]},
           {"head_dim", run["head_dim"]},
           {"intermediate_size", run["ffn"]},
           {"vocab_size", run["vocab"]},
           {"max_position_embeddings", 4096},
           {"full_attention_interval", 4},
           {"linear_num_key_heads", run["key_heads"]},
           {"linear_num_value_heads", run["value_heads"]},
           {"linear_key_head_dim", run["key_dim"]},
           {"linear_value_head_dim", run["value_dim"]},
           {"linear_conv_kernel_dim", 4},
           {"rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.25}, {"rope_theta", 1e7}}},
           {"tie_word_embeddings", false}};
  if (run["experts"] > 0)
    out.update({{"num_experts", run["experts"]},
                {"num_experts_per_tok", run["experts_per_token"]},
                {"moe_intermediate_size", run["expert_ffn"]},
                {"shared_expert_intermediate_size", run["shared_ffn"]}});
  const std::string kind = run["kind"];
  if (kind == "glm4") out.update({{"attention_bias", true}, {"partial_rotary_factor", 0.5}});
  if (kind == "minimax_m2")
    out.update({{"num_local_experts", run["experts"]},
                {"intermediate_size", run["expert_ffn"]},
                {"rotary_dim", run["head_dim"].get<int>() / 2},
                {"use_qk_norm", true},
                {"scoring_func", "sigmoid"},
                {"use_routing_bias", true}});
  if (kind == "mimo") out.update({{"attention_bias", true}, {"num_nextn_predict_layers", 1}});
  if (kind.starts_with("qwen3_5")) out["model_type"] = run["kind"].get<std::string>() + "_text";
  return out;
}

std::string layout_of(const Json& run) {
  const int tensor = run["tensor"], context = run["context"], expert = run["expert"];
  std::string dense = fmt::format("d1t{}{}", tensor, context > 1 ? fmt::format("c{}", context) : "");
  if (expert == 1) return dense;
  return fmt::format("attn:{}|ffn:d1t1e{}", dense, expert);
}

TrainingCase case_of(const Json& run) {
  Json trainer{{"engine", "megatron"},
               {"layout", layout_of(run)},
               {"kernels", "transformer_engine"},
               {"sequence_parallel", run["sequence_parallel"]},
               {"micro_batches", 1},
               {"precision", {{"storage", "bf16"}, {"compute", "bf16"}, {"reduce", "fp32"}}},
               {"gradient_accumulation_fusion", run["fused"]},
               {"distributed_optimizer", false},
               {"rotary_fusion", run["kind"] != "glm4" && run["kind"] != "minimax_m2"},
               {"activation_fusion", true},
               {"attention", "flash"},
               {"cross_entropy", "slime"},
               {"tokens_per_micro_batch", run["tokens"]},
               {"recompute", run["recompute"]}};
  if (run["experts"] > 0) trainer.update({{"permute_fusion", true}, {"router_dtype", "fp32"}, {"router_aux_loss", false}});
  if (run["recompute"] == "full") trainer.update({{"recompute_method", "uniform"}, {"recompute_layers", 1}});
  if (run.contains("mtp")) trainer["mtp_layers"] = run["mtp"];
  const Json job{{"framework", "slime 0.4.0"}, {"model", "tiny"}, {"trainer", trainer}};
  TrainingCase c = read_training_case(job.dump(), config_of(run).dump(), Catalog::builtin());
  if (!run.contains("mtp")) c.trainer.megatron.loss = MegatronLoss::unfused;  // Megatron's own
  return c;
}

/// Highest levels of the phases above what lives when a step is over.
std::vector<std::pair<std::string, Bytes>> levels_of(const TrainingCase& c, const MegatronStage& stage, bool gradients) {
  if (!gradients) return {{"forward", forward_alone(stage)}};
  const TrainingFigures f = training_figures(c);
  return {{"forward", f.forward - f.optimizer}, {"backward", f.backward - f.optimizer}};
}

/// Beside the tokens a batch is counted with positions where the loss is Megatron's, which slime's model is not given. Behind
/// slime's own loss (multi-token prediction) the labels that the executed one takes from its caller are counted as its targets.
Bytes uncounted(const Json& run) {
  const Bytes ids = 8 * run["tokens"].get<Bytes>() / run["context"].get<Bytes>();
  return run.contains("mtp") ? 0 : ids;
}

/// In a backward pass of Megatron 3714d81d, which slime 0.2.2 to 0.2.4 have, a rank's hidden states of one layer are gone sooner:
/// so much less it takes, or, where its highest moment is another one, a part of that.
Bytes gone_sooner(const Json& run, std::string_view phase) {
  if (!run.contains("release") || run["release"] == "0.2.1" || phase != "backward" || run["recompute"] == "full") return 0;
  const auto ranks = (run["sequence_parallel"] ? run["tensor"].get<Bytes>() : 1) * run["context"].get<Bytes>();
  return 2 * run["tokens"].get<Bytes>() * run["hidden"].get<Bytes>() / ranks;
}

double allowed(const Json& run) {
  // a router that replays routes keeps them in two formats beside PyTorch's own indices
  if (run.contains("replay")) return 0.006;
  return run["experts"] > 0 && run["recompute"] == "full" ? 0.004 : 0.002;
}

void meet(const char* file) {
  std::ifstream in(std::string(OOMPLAN_SOURCE_DIR "/tests/data/") + file);
  REQUIRE(in.good());
  int rows = 0;
  double worst = 0;
  for (std::string line; std::getline(in, line); ++rows) {
    const Json row = Json::parse(line);
    const Json& run = row["run"];
    CAPTURE(run.dump());
    const TrainingCase c = case_of(run);
    const MegatronUse use{.log_probs = !run["gradients"].get<bool>(),
                          .sequence = run["tokens"].get<std::int64_t>() / run["sequences"].get<std::int64_t>()};
    const MegatronStage stage = make_megatron_stage(*c.architecture, c.trainer, 0, 1, use);
    CHECK(stage.weights == 2 * row["parameters"].get<Bytes>());
    folds_as_it_expands(stage, 3);
    for (const auto& [phase, level] : levels_of(c, stage, run["gradients"])) {
      const auto ran = row["peaks"][phase].get<double>();
      double apart = (static_cast<double>(level - uncounted(run)) - ran) / ran;
      if (apart > 0) apart = std::max(0.0, apart - static_cast<double>(gone_sooner(run, phase)) / ran);
      CAPTURE(phase);
      CAPTURE(apart);
      CHECK(std::fabs(apart) < allowed(run));
      if (std::getenv("OOMPLAN_SHOW") != nullptr)
        MESSAGE(rows << " " << phase << " " << fmt::format("{:+.3f} % of {}", 100 * apart, ran));
      if (allowed(run) < 0.01) worst = std::max(worst, std::fabs(apart));
    }
  }
  MESSAGE(rows << " steps, worst level off by " << fmt::format("{:.3f} %", 100 * worst));
}

TEST_CASE("steps of layers that slime brings itself are met") { meet("executed_slime_layers.jsonl"); }
TEST_CASE("steps of layers that older releases of slime bring are met") { meet("executed_slime_layers_0_2.jsonl"); }

}  // namespace
