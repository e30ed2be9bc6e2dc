// Megatron-core's own modules against what they saved and held when they ran (tests/data/executed_megatron_local.jsonl, made by
// benchmarks/oracle/execute_megatron_local.py).
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>

#include <fmt/format.h>

#include "estimate/figures.hpp"
#include "job/names.hpp"
#include "layers/megatron_local.hpp"
#include "training/megatron_plan.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

TrainingCase case_of(const Json& run) {
  const bool swiglu = run["swiglu"], squared = run["squared_relu"];
  const Json config{{"model_type", "megatron_gpt"},
                    {"num_hidden_layers", run["layers"]},
                    {"hidden_size", run["hidden"]},
                    {"intermediate_size", run["ffn"]},
                    {"num_attention_heads", run["heads"]},
                    {"num_key_value_heads", run["groups"]},
                    {"head_dim", run["hidden"].get<int>() / run["heads"].get<int>()},
                    {"vocab_size", run["vocab"]},
                    {"max_position_embeddings", run["sequence"]},
                    {"position_embedding_type", run["rope"].get<bool>() ? "rope" : "learned_absolute"},
                    {"rotary_percent", 1.0},
                    {"normalization", "LayerNorm"},
                    {"swiglu", swiglu},
                    {"squared_relu", squared},
                    {"qk_layernorm", run["qk_norm"]},
                    {"add_bias_linear", !swiglu && !squared},
                    {"tie_word_embeddings", false},
                    {"hidden_dropout", run["hidden_dropout"]},
                    {"attention_dropout", run["attention_dropout"]}};
  Json trainer{{"engine", "megatron"},
               {"transformer_impl", "local"},
               {"layout", fmt::format("d1t{}", run["tensor"].get<int>())},
               {"sequence_parallel", run["sequence_parallel"]},
               {"sequences_per_micro_batch", run["sequences"]},
               {"sequence_tokens", run["sequence"]},
               {"micro_batches", 1},
               {"attention_mask", run["mask"]},
               {"masked_softmax_fusion", run["softmax_kernel"]},
               {"attention_softmax_in_fp32", run["softmax_fp32"]},
               {"query_key_layer_scaling", run["layer_scaling"]},
               {"gradient_accumulation_fusion", false},
               {"rotary_fusion", false},
               {"distributed_optimizer", false},
               {"recompute", run["recompute"]}};
  if (!run["modules"].empty()) trainer["recompute_modules"] = run["modules"];
  const Json job{{"framework", "torch"}, {"model", "megatron_gpt"}, {"trainer", trainer}};
  return read_training_case(job.dump(), config.dump(), Catalog::builtin());
}

/// A few numbers for each token that the loss holds for a moment, and a table of rotary positions.
constexpr Bytes kOfAToken = 32;

TEST_CASE("megatron: its own modules save and hold what they saved and held") {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/executed_megatron_local.jsonl");
  REQUIRE(in.good());
  int rows = 0;
  Bytes worst = 0;
  for (std::string line; std::getline(in, line); ++rows) {
    const Json row = Json::parse(line);
    CAPTURE(row["run"].dump());
    const TrainingCase c = case_of(row["run"]);
    const MegatronStage stage = make_megatron_stage(*c.architecture, c.trainer, 0, 1);
    CHECK(stage.gathered == row["buffer"].get<Bytes>());
    CHECK(stage.workspace == 0);
    if (c.trainer.recompute == Recompute::none) {
      std::map<std::pair<std::string, Bytes>, std::int64_t> want, got;
      for (const auto& one : row["saved"]) want[{one[0].get<std::string>(), one[1].get<Bytes>()}] += one[2].get<std::int64_t>();
      const ChunkOptions chunk = megatron_chunks(*c.architecture, c.trainer, 0).front();
      for (const TapeSite& site : saved_of_chunk_layer(*c.architecture, chunk, 0))
        ++got[{std::string(oomplan::row(site.dtype).name), site.bytes.value(stage.counts)}];
      CHECK(want == got);
    }
    const TrainingFigures f = training_figures(c);
    const std::map<std::string, Bytes> levels{{"forward", f.forward - f.optimizer}, {"backward", f.backward - f.optimizer}};
    for (const auto& [phase, level] : levels) {
      CAPTURE(phase);
      const Bytes apart = std::abs(level - row["peaks"][phase].get<Bytes>());
      CHECK(apart <= kOfAToken * row["run"]["sequence"].get<Bytes>() * row["run"]["sequences"].get<Bytes>());
      worst = std::max(worst, apart);
    }
  }
  CHECK(rows == 28);
  MESSAGE(rows << " steps, worst level off by " << worst << " bytes");
}

TEST_CASE("megatron: sizes that the kernel of mask and softmax takes") {
  CHECK(local_softmax_kernel(4, 2, 1024));
  CHECK_FALSE(local_softmax_kernel(1, 2, 1024));  // blocks of four rows
  CHECK_FALSE(local_softmax_kernel(4, 1, 128));   // of short sequences eight
  CHECK(local_softmax_kernel(4, 2, 128));
  CHECK_FALSE(local_softmax_kernel(4, 8, 16));
  CHECK_FALSE(local_softmax_kernel(4, 8, 4100));
  CHECK_FALSE(local_softmax_kernel(4, 8, 1022));
}

}  // namespace
