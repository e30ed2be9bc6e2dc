// Qwen3.5 as the runs of benchmarks/oracle/execute_megatron_linear.py and execute_verl_predicted_linear.py have it.
#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include <fmt/format.h>

inline bool qwen35_alone(const nlohmann::json& run) { return run["first"].get<bool>() && run["last"].get<bool>(); }

inline nlohmann::json qwen35_config(const nlohmann::json& run) {
  const bool moe = run["experts"].get<int>() > 0;
  const nlohmann::json vision{
      {"depth", run["tower_layers"]},       {"hidden_size", run["tower_hidden"]}, {"intermediate_size", run["tower_ffn"]},
      {"num_heads", run["tower_heads"]},    {"patch_size", run["patch"]},         {"temporal_patch_size", run["temporal"]},
      {"spatial_merge_size", run["merge"]}, {"out_hidden_size", run["hidden"]},   {"num_position_embeddings", run["positions"]}};
  nlohmann::json text{{"model_type", run["kind"].get<std::string>() + "_text"},
                      {"num_hidden_layers", run["layers"]},
                      {"hidden_size", run["hidden"]},
                      {"num_attention_heads", run["heads"]},
                      {"num_key_value_heads", run["groups"]},
                      {"head_dim", run["head_dim"]},
                      {"vocab_size", run["vocab"]},
                      {"max_position_embeddings", 4096},
                      {"full_attention_interval", 4},
                      {"mtp_num_hidden_layers", run.value("mtp", 0)},
                      {"linear_num_key_heads", run["key_heads"]},
                      {"linear_num_value_heads", run["value_heads"]},
                      {"linear_key_head_dim", run["key_dim"]},
                      {"linear_value_head_dim", run["value_dim"]},
                      {"linear_conv_kernel_dim", 4},
                      {"rope_parameters", {{"rope_type", "default"}, {"partial_rotary_factor", 0.25}, {"rope_theta", 1e7}}},
                      {"tie_word_embeddings", false}};
  if (moe)
    text.update({{"num_experts", run["experts"]},
                 {"num_experts_per_tok", run["experts_per_token"]},
                 {"moe_intermediate_size", run["expert_ffn"]},
                 {"shared_expert_intermediate_size", run["shared_ffn"]}});
  else
    text["intermediate_size"] = run["ffn"];
  return {{"model_type", run["kind"]}, {"text_config", text}, {"vision_config", vision}, {"tie_word_embeddings", false}};
}

/// Experts are shared out among the ranks that split the rest.
inline std::string qwen35_layout(const nlohmann::json& run) {
  const int context = run.value("context", 1), tensor = run["tensor"].get<int>();
  const std::string parts = context > 1 ? fmt::format("c{}", context) : "", stages = qwen35_alone(run) ? "" : "p2";
  const std::string dense = fmt::format("d1t{}{}{}", tensor, parts, stages);
  if (run["experts"].get<int>() == 0 || tensor == 1) return dense;
  return fmt::format("attn:{}|ffn:d{}t1e{}{}", dense, context, tensor, stages);
}
