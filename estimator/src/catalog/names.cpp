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
    {.model_type = "gemma2", .pre_ff = "pre_feedforward_layernorm"},
    {.model_type = "gemma3_text", .pre_ff = "pre_feedforward_layernorm"},
    {.model_type = "gemma3", .stem = "language_model.model.", .head = "language_model.lm_head", .pre_ff = "pre_feedforward_layernorm"},
    {.model_type = "hunyuan_v1_dense", .q_norm = "query_layernorm", .k_norm = "key_layernorm"},
};

}  // namespace

const Names& names_of(std::string_view model_type) {
  for (const Names& row : kNames)
    if (row.model_type == model_type) return row;
  return kNames[0];
}

}  // namespace oomplan
