#include "catalog/names.hpp"

namespace oomplan {
namespace {

// Names of the safetensors files on the Hub; where transformers renames on load, the stored name.
constexpr Names kNames[] = {
    {.model_type = "llama"},
    {.model_type = "gpt2", .stem = "", .layers = "h.{l}.", .embedding = "wte", .positions = "wpe", .final_norm = "ln_f",
     .attention = "attn.", .out = "c_proj", .qkv = "c_attn", .up = "c_fc", .down = "c_proj", .pre_mixer = "ln_1", .pre_ff = "ln_2"},
    {.model_type = "gptj", .stem = "transformer.", .layers = "h.{l}.", .embedding = "wte", .final_norm = "ln_f", .attention = "attn.",
     .out = "out_proj", .up = "fc_in", .down = "fc_out", .pre_mixer = "ln_1"},
    {.model_type = "gpt_neox", .stem = "gpt_neox.", .embedding = "embed_in", .final_norm = "final_layer_norm", .head = "embed_out",
     .attention = "attention.", .out = "dense", .qkv = "query_key_value", .up = "dense_h_to_4h", .down = "dense_4h_to_h"},
    {.model_type = "opt", .stem = "model.decoder.", .final_norm = "final_layer_norm", .out = "out_proj", .feed_forward = "",
     .up = "fc1", .down = "fc2", .pre_mixer = "self_attn_layer_norm", .post_mixer = "self_attn_layer_norm",
     .pre_ff = "final_layer_norm", .post_ff = "final_layer_norm"},
    {.model_type = "bloom", .stem = "", .layers = "h.{l}.", .embedding = "word_embeddings",
     .embedding_norm = "word_embeddings_layernorm", .final_norm = "ln_f", .attention = "self_attention.", .out = "dense",
     .qkv = "query_key_value", .up = "dense_h_to_4h", .down = "dense_4h_to_h"},
    {.model_type = "falcon", .stem = "transformer.", .layers = "h.{l}.", .embedding = "word_embeddings", .final_norm = "ln_f",
     .attention = "self_attention.", .out = "dense", .qkv = "query_key_value", .up = "dense_h_to_4h", .down = "dense_4h_to_h"},
    {.model_type = "mpt", .stem = "transformer.", .layers = "blocks.{l}.", .embedding = "wte", .positions = "wpe",
     .final_norm = "norm_f", .attention = "attn.", .out = "out_proj", .qkv = "Wqkv", .feed_forward = "ffn.", .pre_mixer = "norm_1",
     .pre_ff = "norm_2"},
    {.model_type = "starcoder2", .up = "c_fc", .down = "c_proj"},
    {.model_type = "phi", .final_norm = "final_layernorm", .out = "dense", .up = "fc1", .down = "fc2"},
    {.model_type = "qwen", .stem = "transformer.", .layers = "h.{l}.", .embedding = "wte", .final_norm = "ln_f", .attention = "attn.",
     .out = "c_proj", .qkv = "c_attn", .gate = "w2", .up = "w1", .down = "c_proj", .pre_mixer = "ln_1", .pre_ff = "ln_2"},
    {.model_type = "baichuan", .qkv = "W_pack"},
    {.model_type = "internlm2", .embedding = "tok_embeddings", .head = "output", .attention = "attention.", .out = "wo",
     .qkv = "wqkv", .feed_forward = "feed_forward.", .gate = "w1", .up = "w3", .down = "w2", .pre_mixer = "attention_norm",
     .pre_ff = "ffn_norm"},
    {.model_type = "chatglm", .stem = "transformer.", .layers = "encoder.layers.{l}.", .embedding = "embedding.word_embeddings",
     .final_norm = "encoder.final_layernorm", .head = "transformer.output_layer", .attention = "self_attention.", .out = "dense",
     .qkv = "query_key_value", .down = "dense_4h_to_h", .gate_up = "dense_h_to_4h"},
    {.model_type = "glm4", .post_mixer = "post_self_attn_layernorm", .post_ff = "post_mlp_layernorm"},
    {.model_type = "olmo2", .post_ff = "post_feedforward_layernorm"},
    {.model_type = "olmo3", .post_ff = "post_feedforward_layernorm"},
    {.model_type = "hunyuan_v1_dense", .q_norm = "query_layernorm", .k_norm = "key_layernorm"},
    {.model_type = "gemma2", .pre_ff = "pre_feedforward_layernorm"},
    {.model_type = "gemma3_text", .pre_ff = "pre_feedforward_layernorm"},
    {.model_type = "gemma3", .stem = "language_model.model.", .head = "language_model.lm_head", .pre_ff = "pre_feedforward_layernorm"},
    {.model_type = "gemma3n", .stem = "model.language_model.", .pre_ff = "pre_feedforward_layernorm"},
    {.model_type = "gemma4", .stem = "model.language_model.", .pre_ff = "pre_feedforward_layernorm", .moe = "", .router = "router.proj"},
    {.model_type = "mixtral", .family = "grok-1", .attention = "attn.", .pre_mixer = "pre_attn_norm", .post_mixer = "post_attn_norm",
     .pre_ff = "pre_moe_norm", .post_ff = "post_moe_norm", .moe = "block_sparse_moe.", .expert_gate = "w1", .expert_up = "w3",
     .expert_down = "w2"},
    {.model_type = "mixtral", .moe = "block_sparse_moe.", .expert_gate = "w1", .expert_up = "w3", .expert_down = "w2"},
    {.model_type = "phimoe", .moe = "block_sparse_moe.", .expert_gate = "w1", .expert_up = "w3", .expert_down = "w2"},
    {.model_type = "minimax_m1", .moe = "block_sparse_moe.", .expert_gate = "w1", .expert_up = "w3", .expert_down = "w2"},
    {.model_type = "minimax_m2", .moe = "block_sparse_moe.", .correction = "block_sparse_moe.e_score_correction_bias",
     .expert_gate = "w1", .expert_up = "w3", .expert_down = "w2"},
    {.model_type = "minimax_m3", .moe = "block_sparse_moe.", .shared = "block_sparse_moe.shared_experts.",
     .correction = "block_sparse_moe.e_score_correction_bias", .expert_gate = "w1", .expert_up = "w3", .expert_down = "w2"},
    {.model_type = "minimax_m3_vl", .stem = "model.language_model."},
    {.model_type = "granitemoe", .moe = "block_sparse_moe.", .router = "router.layer", .fused_up = "input_linear.weight",
     .fused_down = "output_linear.weight"},
    {.model_type = "granitemoehybrid", .moe = "block_sparse_moe.", .router = "router.layer", .shared = "shared_mlp.",
     .fused_up = "input_linear.weight", .fused_down = "output_linear.weight", .state = "mamba."},
    {.model_type = "gpt_oss", .router = "router"},
    {.model_type = "qwen2_moe", .shared = "mlp.shared_expert."},
    {.model_type = "qwen3_next", .shared = "mlp.shared_expert."},
    {.model_type = "qwen3_5", .stem = "model.language_model."},
    {.model_type = "qwen3_5_moe", .stem = "model.language_model.", .shared = "mlp.shared_expert."},
    {.model_type = "qwen3_vl", .stem = "model.language_model."},
    {.model_type = "qwen3_vl_moe", .stem = "model.language_model."},
    {.model_type = "mistral3", .stem = "language_model.model.", .head = "language_model.lm_head"},
    {.model_type = "ministral3", .stem = "language_model.model.", .head = "language_model.lm_head"},
    {.model_type = "internvl_chat", .stem = "language_model.model.", .head = "language_model.lm_head"},
    {.model_type = "kimi_k25", .stem = "language_model.model.", .head = "language_model.lm_head"},
    {.model_type = "llama4", .stem = "language_model.model.", .head = "language_model.lm_head", .feed_forward = "feed_forward.",
     .moe = "feed_forward.", .router = "router", .shared = "feed_forward.shared_expert."},
    {.model_type = "bailing_moe", .embedding = "word_embeddings", .attention = "attention.", .out = "dense", .qkv = "query_key_value",
     .q_norm = "query_layernorm", .k_norm = "key_layernorm", .correction = "mlp.gate.expert_bias"},
    {.model_type = "ernie4_5_moe", .correction = "mlp.moe_statics.e_score_correction_bias"},
    {.model_type = "hunyuan_v1_moe", .q_norm = "query_layernorm", .k_norm = "key_layernorm", .router = "gate.wg", .shared = "mlp.shared_mlp."},
    {.model_type = "mimo_v2_flash", .sinks = "attention_sink_bias"},
    {.model_type = "dbrx", .stem = "transformer.", .layers = "blocks.{l}.", .embedding = "wte", .final_norm = "norm_f",
     .attention = "norm_attn_norm.attn.", .out = "out_proj", .qkv = "Wqkv", .pre_mixer = "norm_attn_norm.norm_1",
     .pre_ff = "norm_attn_norm.norm_2", .moe = "ffn.", .router = "router.layer", .fused_up = "experts.mlp.w1_v1",
     .fused_down = "experts.mlp.w2"},
    {.model_type = "jamba", .final_norm = "final_layernorm", .feed_forward = "feed_forward.", .pre_ff = "pre_ff_layernorm",
     .moe = "feed_forward.", .router = "router", .state = "mamba."},
    {.model_type = "mamba", .stem = "backbone.", .embedding = "embeddings", .final_norm = "norm_f", .pre_mixer = "norm"},
    {.model_type = "mamba2", .stem = "backbone.", .embedding = "embeddings", .final_norm = "norm_f", .pre_mixer = "norm"},
    {.model_type = "falcon_mamba", .stem = "backbone.", .embedding = "embeddings", .final_norm = "norm_f", .pre_mixer = "norm"},
    {.model_type = "nemotron_h", .stem = "backbone.", .embedding = "embeddings", .final_norm = "norm_f", .attention = "mixer.",
     .feed_forward = "mixer.", .pre_mixer = "norm", .moe = "mixer.", .shared = "mixer.shared_experts.",
     .correction = "mixer.gate.e_score_correction_bias"},
};

}  // namespace

const Names& names_of(std::string_view model_type, std::string_view family) {
  for (const Names& row : kNames)
    if (row.model_type == model_type && (row.family.empty() || row.family == family)) return row;
  for (const Names& row : kNames)
    if (row.model_type == family) return row;
  return kNames[0];
}

}  // namespace oomplan
