// Qwen3-VL and Qwen2.5-VL as the runs of benchmarks/oracle/execute_megatron_vision.py have them.
#pragma once
#include <nlohmann/json.hpp>

inline nlohmann::json qwen3_vl_config(const nlohmann::json& run) {
  const bool qwen3 = run["kind"] == "qwen3_vl";
  nlohmann::json vision{
      {"depth", run["tower_layers"]},       {"hidden_size", run["tower_hidden"]}, {"intermediate_size", run["tower_ffn"]},
      {"num_heads", run["tower_heads"]},    {"patch_size", run["patch"]},         {"temporal_patch_size", run["temporal"]},
      {"spatial_merge_size", run["merge"]}, {"out_hidden_size", run["hidden"]}};
  if (qwen3) vision.update({{"num_position_embeddings", run["positions"]}, {"deepstack_visual_indexes", run["deepstack"]}});
  const nlohmann::json text{{"model_type", qwen3 ? "qwen3_vl_text" : "qwen2_5_vl_text"},
                            {"num_hidden_layers", run["layers"]},
                            {"hidden_size", run["hidden"]},
                            {"num_attention_heads", run["heads"]},
                            {"num_key_value_heads", run["groups"]},
                            {"head_dim", run["head_dim"]},
                            {"intermediate_size", run["ffn"]},
                            {"vocab_size", run["vocab"]},
                            {"max_position_embeddings", 4096},
                            {"tie_word_embeddings", false}};
  return {{"model_type", run["kind"]}, {"text_config", text}, {"vision_config", vision}, {"tie_word_embeddings", false}};
}
