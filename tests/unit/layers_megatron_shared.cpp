// Shared experts beside the exchange against what Megatron-core's own saved when they ran
// (tests/data/executed_megatron_shared.jsonl, made by benchmarks/oracle/execute_megatron_shared.py).
#include <doctest/doctest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include <fmt/format.h>

#include "estimate/figures.hpp"
#include "training/megatron_plan.hpp"

namespace {

using namespace oomplan;
using Json = nlohmann::json;

TrainingCase case_of(const Json& row, bool overlap) {
  const Json config{{"model_type", "deepseek_v3"},
                    {"hidden_size", row["hidden"]},
                    {"intermediate_size", 512},
                    {"moe_intermediate_size", row["width"]},
                    {"n_routed_experts", 4},
                    {"n_shared_experts", 1},
                    {"num_experts_per_tok", 2},
                    {"first_k_dense_replace", 0},
                    {"n_group", 1},
                    {"topk_group", 1},
                    {"num_hidden_layers", 1},
                    {"num_attention_heads", 4},
                    {"kv_lora_rank", 64},
                    {"q_lora_rank", nullptr},
                    {"qk_nope_head_dim", 32},
                    {"qk_rope_head_dim", 16},
                    {"v_head_dim", 32},
                    {"vocab_size", 1024},
                    {"norm_topk_prob", true},
                    {"scoring_func", "sigmoid"},
                    {"max_position_embeddings", 4096}};
  const auto ranks = row["ranks"].get<int>();
  const Json trainer{{"engine", "megatron"},
                     {"layout", ranks == 1 ? std::string("d1") : fmt::format("attn:d1t{0}|ffn:t1e{0}", ranks)},
                     {"sequence_parallel", ranks > 1},
                     {"sequences_per_micro_batch", 1},
                     {"sequence_tokens", row["tokens"]},
                     {"micro_batches", 1},
                     {"recompute", "none"},
                     {"activation_fusion", row["fused"]},
                     {"shared_expert_overlap", overlap}};
  const Json job{{"framework", "torch"}, {"model", "deepseek_v3"}, {"trainer", trainer}};
  return read_training_case(job.dump(), config.dump(), Catalog::builtin());
}

std::map<Bytes, std::int64_t> saved_of_shared(const TrainingCase& c) {
  const MegatronStage stage = make_megatron_stage(*c.architecture, c.trainer, 0, 1);
  std::map<Bytes, std::int64_t> out;
  for (const auto& site : saved_of_chunk_layer(*c.architecture, megatron_chunks(*c.architecture, c.trainer, 0).front(), 0))
    if (site.name.find("shared_experts.") != std::string::npos) ++out[site.bytes.value(stage.counts)];
  return out;
}

TEST_CASE("megatron: shared experts beside the exchange save what they saved") {
  std::ifstream in(OOMPLAN_SOURCE_DIR "/tests/data/executed_megatron_shared.jsonl");
  REQUIRE(in.good());
  int rows = 0;
  for (std::string line; std::getline(in, line); ++rows) {
    CAPTURE(line);
    const Json row = Json::parse(line);
    std::map<Bytes, std::int64_t> want;
    for (const auto& tensor : row["saved"]) want[tensor[0].get<Bytes>()] += tensor[1].get<std::int64_t>();
    CHECK(saved_of_shared(case_of(row, true)) == want);
    if (row["ranks"] == 1 || !row["fused"].get<bool>()) continue;
    // by themselves their module gathers the input, and keeps this rank's part of it: the norm's result
    CHECK(--want[row["tokens"].get<Bytes>() * row["hidden"].get<Bytes>() * 2] == 0);
    std::erase_if(want, [](const auto& tensor) { return tensor.second == 0; });
    CHECK(saved_of_shared(case_of(row, false)) == want);
  }
  CHECK(rows == 5);
}

}  // namespace
