// Executed dispatchers as jobs of one layer.
#pragma once
#include <nlohmann/json.hpp>

#include <fmt/format.h>

#include "estimate/figures.hpp"

namespace oomplan {

/// config.json of the row's model.
inline nlohmann::json dispatcher_model(const nlohmann::json& row) {
  return {{"model_type", "qwen3_moe"},
          {"hidden_size", row["hidden"]},
          {"intermediate_size", 512},
          {"moe_intermediate_size", 128},
          {"num_experts", row["experts"]},
          {"num_experts_per_tok", row["top"]},
          {"num_hidden_layers", 1},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 4},
          {"head_dim", 64},
          {"vocab_size", 1024},
          {"norm_topk_prob", true},
          {"decoder_sparse_step", 1},
          {"mlp_only_layers", nlohmann::json::array()},
          {"max_position_embeddings", 4096}};
}

/// A model of one layer whose dispatcher has the sizes of the row.
inline TrainingCase dispatcher_case(const nlohmann::json& row, const char* dispatcher) {
  const auto ranks = row["ranks"].get<int>(), splits = row["splits"].get<int>();
  const nlohmann::json trainer{
      {"engine", "megatron"},
      {"layout", splits == 1 ? fmt::format("d{0}e{0}", ranks) : fmt::format("attn:d{0}t{1}|ffn:t{1}e{0}", ranks, splits)},
      {"sequence_parallel", splits > 1},
      {"sequences_per_micro_batch", 1},
      {"sequence_tokens", row["tokens"].get<int>() * splits},
      {"micro_batches", 1},
      {"recompute", "none"},
      {"dispatcher", dispatcher},
      {"permute_fusion", false},
      {"router_dtype", row["router"]}};
  const nlohmann::json job{{"framework", "torch"}, {"model", "qwen3_moe"}, {"trainer", trainer}};
  return read_training_case(job.dump(), dispatcher_model(row).dump(), Catalog::builtin());
}

}  // namespace oomplan
