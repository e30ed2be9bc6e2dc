// verl's own models on Megatron-core 0.12 (verl 0.4.1, before it had bridges) against what whole steps of them reached
// (tests/data/executed_verl_megatron.jsonl, made by benchmarks/oracle/execute_verl_megatron.py).
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include <fmt/format.h>

#include "estimate/figures.hpp"
#include "job/model_makers.hpp"
#include "megatron_folds.hpp"
#include "training/megatron_plan.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

Json config_of(const Json& run) {
  const std::string kind = run["kind"];
  Json out{{"model_type", kind},
           {"num_hidden_layers", run["layers"]},
           {"hidden_size", run["hidden"]},
           {"num_attention_heads", run["heads"]},
           {"num_key_value_heads", run["groups"]},
           {"intermediate_size", run["ffn"]},
           {"vocab_size", run["vocab"]},
           {"max_position_embeddings", 4096},
           {"tie_word_embeddings", false}};
  if (kind == "deepseek_v3") {
    const auto width = run["expert_ffn"].get<int>();
    out.update({{"q_lora_rank", 96},
                {"kv_lora_rank", 64},
                {"qk_nope_head_dim", 32},
                {"qk_rope_head_dim", 16},
                {"v_head_dim", 32},
                {"n_routed_experts", run["experts"]},
                {"n_shared_experts", run["shared_ffn"].get<int>() / width},
                {"n_group", 1},
                {"topk_group", 1},
                {"first_k_dense_replace", 1},
                {"scoring_func", "sigmoid"},
                {"topk_method", "noaux_tc"},
                {"norm_topk_prob", true},
                {"routed_scaling_factor", 2.5},
                {"moe_intermediate_size", width},
                {"num_experts_per_tok", run["top"]}});
  } else {
    out["head_dim"] = run["hidden"].get<int>() / run["heads"].get<int>();
  }
  if (run["experts"] != 0 && kind != "deepseek_v3")
    out.update({{kind == "mixtral" ? "num_local_experts" : "num_experts", run["experts"]},
                {"num_experts_per_tok", run["top"]},
                {"norm_topk_prob", kind != "qwen2_moe"},
                {"moe_intermediate_size", run["expert_ffn"]},
                {"shared_expert_intermediate_size", run["shared_ffn"]}});
  return out;
}

TrainingCase executed_case(const Json& run) {
  const auto tensor = run["tensor"].get<int>(), expert = run["expert"].get<int>();
  const std::string dense = fmt::format("d{}t{}", expert, tensor);
  const bool routed = run["experts"] != 0;
  const MadeModel made = made_model(ModelMaker::verl, run["kind"].get<std::string>()).value();
  Json trainer{{"engine", "megatron"},
               {"models_by", "verl"},
               {"core_release", "0.12"},
               {"cross_entropy", "verl_undivided"},
               {"layout", routed ? fmt::format("attn:{}|ffn:d1t{}e{}", dense, expert > 1 ? 1 : tensor, expert) : dense},
               {"kernels", "transformer_engine"},
               {"sequence_parallel", tensor > 1},
               {"tokens_per_micro_batch", run["tokens"].get<int>() * run["sequences"].get<int>()},
               {"micro_batches", 1},
               {"precision", {{"storage", "bf16"}, {"compute", "bf16"}, {"reduce", "fp32"}}},
               {"gradient_accumulation_fusion", made.fused_gradients},
               {"deallocate_outputs", made.deallocates},
               {"activation_fusion", made.activation_fusion},
               {"rotary_fusion", made.rotary_fusion},
               {"permute_fusion", made.permute_fusion},
               {"shared_expert_overlap", made.shared_overlap},
               {"router_aux_loss", made.balances},
               {"router_dtype", made.router == DType::fp64 ? "fp64" : "bf16"},
               {"distributed_optimizer", false},
               {"attention", run["kind"] == "deepseek_v3" ? "fused" : "flash"},
               {"recompute", run["recompute"]}};
  const Json job{{"framework", "verl 0.8"}, {"model", "tiny"}, {"trainer", trainer}};
  return read_training_case(job.dump(), config_of(run).dump(), Catalog::builtin());
}

/// Names of expert layers live otherwise in 0.12 where nothing is kept for backward, and where several ranks split an expert: the
/// levels are apart by at most a block of all rows, as they come and behind the gate.
double limit_of(const Json& run, double ran) {
  const bool again = run["recompute"] == "full", split = run["tensor"] != 1;
  if (run["experts"] == 0 || (!again && !split)) return run["kind"] == "deepseek_v3" ? 0.0045 : 0.0025;
  const double width = run["kind"] == "mixtral" ? run["ffn"].get<double>() : run["expert_ffn"].get<double>();
  const double rows = run["sequences"].get<double>() * run["tokens"].get<double>() * run["top"].get<double>();
  return 2 * rows * (run["hidden"].get<double>() + width) / ran;
}

TEST_CASE("steps of verl's own models on Megatron-core 0.12 are met") {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/executed_verl_megatron.jsonl");
  REQUIRE(in.good());
  int rows = 0, exact = 0;
  double worst = 0;
  for (std::string line; std::getline(in, line); ++rows) {
    const Json row = Json::parse(line);
    CAPTURE(row["run"].dump());
    const TrainingCase c = executed_case(row["run"]);
    const MegatronStage stage = make_megatron_stage(*c.architecture, c.trainer, 0, 1);
    CHECK(stage.weights == 2 * row["parameters"].get<Bytes>());
    folds_as_it_expands(stage, 3);
    const TrainingFigures f = training_figures(c);
    for (const auto& [phase, level] : {std::pair{"forward", f.forward - f.optimizer}, {"backward", f.backward - f.optimizer}}) {
      const auto ran = row["peaks"][phase].get<double>();
      const double apart = (static_cast<double>(level) - ran) / ran;
      CAPTURE(phase);
      CAPTURE(level);
      CAPTURE(ran);
      CAPTURE(apart);
      const double limit = limit_of(row["run"], ran);
      CHECK(std::fabs(apart) < limit);
      if (limit < 0.005) worst = std::max(worst, std::fabs(apart)), ++exact;
    }
  }
  CHECK(rows == 39);
  CHECK(exact >= 50);
  MESSAGE(rows << " steps, worst level of " << exact << " off by " << fmt::format("{:.3f} %", 100 * worst));
}

}  // namespace
