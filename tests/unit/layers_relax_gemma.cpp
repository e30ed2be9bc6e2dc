// Gemma 4 as Relax trains it on Megatron-Bridge: parameters, what is kept, and whole steps that ran
// (benchmarks/oracle/execute_relax_gemma.py).
#include <doctest/doctest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include <fmt/format.h>

#include "estimate/figures.hpp"
#include "layers/megatron.hpp"
#include "megatron_folds.hpp"
#include "training/megatron_plan.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

Json config_of(const Json& run) {
  Json types = Json::array();
  for (int i = 0; i < run["layers"].get<int>(); ++i) types.push_back((i + 1) % 6 != 0 ? "sliding_attention" : "full_attention");
  Json out{{"model_type", "gemma4_text"},
           {"num_hidden_layers", run["layers"]},
           {"hidden_size", run["hidden"]},
           {"num_attention_heads", run["heads"]},
           {"num_key_value_heads", run["groups"]},
           {"num_global_key_value_heads", run["global_groups"]},
           {"head_dim", run["head_dim"]},
           {"global_head_dim", run["global_dim"]},
           {"intermediate_size", run["ffn"]},
           {"vocab_size", run["vocab"]},
           {"vocab_size_per_layer_input", run["vocab"]},
           {"hidden_size_per_layer_input", 0},
           {"attention_k_eq_v", true},
           {"enable_moe_block", false},
           {"layer_types", types},
           {"sliding_window", run["window"]},
           {"max_position_embeddings", 4096},
           {"num_kv_shared_layers", 0},
           {"final_logit_softcapping", 30.0},
           {"tie_word_embeddings", true}};
  if (run["experts"] > 0)
    out.update({{"enable_moe_block", true},
                {"num_experts", run["experts"]},
                {"top_k_experts", run["experts_per_token"]},
                {"moe_intermediate_size", run["expert_ffn"]}});
  return out;
}

std::string layout_of(const Json& run) {
  const int tensor = run["tensor"];
  if (run["experts"] == 0 || tensor == 1) return fmt::format("d1t{}", tensor);
  return fmt::format("attn:d1t{}|ffn:d1t1e{}", tensor, tensor);
}

TrainingCase executed_case(const Json& run) {
  Json trainer{{"engine", "megatron"},
               {"models_by", "megatron-bridge"},
               {"cross_entropy", "slime_sliced"},
               {"layout", layout_of(run)},
               {"kernels", "transformer_engine"},
               {"sequence_parallel", run["sequence_parallel"]},
               {"micro_batches", 1},
               {"precision", {{"storage", "bf16"}, {"compute", "bf16"}, {"reduce", "fp32"}}},
               {"gradient_accumulation_fusion", run["fused"]},
               {"distributed_optimizer", false},
               {"rotary_fusion", false},
               {"activation_fusion", false},
               {"attention", "flash"},
               {"recompute", run["recompute"]},
               {"sequence_tokens", run["tokens"]},
               {"tokens_per_micro_batch", run["tokens"].get<int>() * run["sequences"].get<int>()}};
  if (run["experts"] > 0)
    trainer.update(
        {{"permute_fusion", true}, {"shared_expert_overlap", false}, {"router_dtype", "fp32"}, {"router_aux_loss", false}});
  if (run["recompute"] == "full")
    trainer.update({{"recompute_method", run["recompute_method"]}, {"recompute_layers", run["recompute_layers"]}});
  const Json job{{"framework", "relax 2026.08"}, {"model", "tiny"}, {"trainer", trainer}};
  TrainingCase c = read_training_case(job.dump(), config_of(run).dump(), Catalog::builtin());
  c.trainer.megatron.loss = MegatronLoss::unfused;  // Relax's loss is executed by itself
  c.trainer.sequence_tokens = run["tokens"];
  c.trainer.kernel_internals = false;
  return c;
}

Bytes kept_bytes(const MegatronStage& stage) {
  const Tape& tape = *stage.chunks.front();
  Bytes out = 0;
  for (const TapeSite& site : tape.sites)
    if (site.saved) out += site.bytes.value(stage.counts) * tape.stations[site.station].count;
  return out;
}

}  // namespace

TEST_CASE("steps of Gemma 4 under Relax are met") {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/executed_relax_gemma.jsonl");
  REQUIRE(in.good());
  int rows = 0;
  double worst = 0, worst_kept = 0;
  for (std::string line; std::getline(in, line); ++rows) {
    const Json row = Json::parse(line);
    const Json& run = row["run"];
    CAPTURE(run.dump());
    const TrainingCase c = executed_case(run);
    const MegatronStage stage = make_megatron_stage(*c.architecture, c.trainer, 0, 1);
    CHECK(stage.weights == 2 * row["parameters"].get<Bytes>());
    const auto saved = row["saved"].get<double>();
    const double more = (static_cast<double>(kept_bytes(stage)) - saved) / saved;
    CAPTURE(more);
    if (run["recompute"] == "none") {
      CHECK(std::fabs(more) < 0.001);
      worst_kept = std::max(worst_kept, std::fabs(more));
    }
    folds_as_it_expands(stage, 3);
    const TrainingFigures f = training_figures(c);
    for (const auto& [phase, level] : {std::pair<std::string, Bytes>{"forward", f.forward}, {"backward", f.backward}}) {
      const auto ran = row["peaks"][phase].get<double>();
      const double apart = (static_cast<double>(level - (f.optimizer - stage.averaged)) - ran) / ran;
      CAPTURE(phase);
      CAPTURE(apart);
      CHECK(std::fabs(apart) < 0.001);
      worst = std::max(worst, std::fabs(apart));
    }
  }
  CHECK(rows == 30);
  MESSAGE(rows << " steps, worst level off by " << fmt::format("{:.3f} %", 100 * worst) << ", what is kept by "
               << fmt::format("{:.3f} %", 100 * worst_kept));
}
