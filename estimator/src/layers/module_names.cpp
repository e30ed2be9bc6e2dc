#include "layers/module_names.hpp"

#include <array>

#include "catalog/names.hpp"

namespace oomplan {
namespace {

constexpr std::string_view kExpertBlock = "mlp.experts.act_fn",
                           kSharedBlock = "mlp.act_fn mlp.experts.act_fn mlp.shared_experts.act_fn";

constexpr ModuleNames kModuleNames[] = {
    {.family = "llama"},
    {.family = "gpt2",
     .stem = "transformer.",
     .layers = "h",
     .embedding = "wte",
     .positions = "wpe",
     .final_norm = "ln_f",
     .attention = "attn.",
     .out = "c_proj",
     .qkv = "c_attn",
     .up = "c_fc",
     .down = "c_proj",
     .bare = "attn.attn_dropout attn.resid_dropout mlp.act mlp.dropout"},
    {.family = "gptj",
     .stem = "transformer.",
     .layers = "h",
     .embedding = "wte",
     .final_norm = "ln_f",
     .attention = "attn.",
     .out = "out_proj",
     .up = "fc_in",
     .down = "fc_out",
     .bare = "attn.attn_dropout attn.resid_dropout mlp.act mlp.dropout"},
    {.family = "gpt_neox",
     .stem = "gpt_neox.",
     .embedding = "embed_in",
     .final_norm = "final_layer_norm",
     .attention = "attention.",
     .out = "dense",
     .qkv = "query_key_value",
     .up = "dense_h_to_4h",
     .down = "dense_4h_to_h",
     .bare = "mlp.act post_attention_dropout post_mlp_dropout"},
    {.family = "opt",
     .stem = "model.decoder.",
     .final_norm = "final_layer_norm",
     .out = "out_proj",
     .feed_forward = "",
     .up = "fc1",
     .down = "fc2",
     .bare = "activation_fn"},
    {.family = "bloom",
     .stem = "transformer.",
     .layers = "h",
     .embedding = "word_embeddings",
     .final_norm = "ln_f",
     .attention = "self_attention.",
     .out = "dense",
     .qkv = "query_key_value",
     .up = "dense_h_to_4h",
     .down = "dense_4h_to_h",
     .bare = "mlp.gelu_impl self_attention.attention_dropout"},
    {.family = "falcon",
     .stem = "transformer.",
     .layers = "h",
     .embedding = "word_embeddings",
     .final_norm = "ln_f",
     .attention = "self_attention.",
     .out = "dense",
     .qkv = "query_key_value",
     .up = "dense_h_to_4h",
     .down = "dense_4h_to_h",
     .bare = "mlp.act self_attention.attention_dropout"},
    {.family = "mpt",
     .stem = "transformer.",
     .layers = "blocks",
     .embedding = "wte",
     .final_norm = "norm_f",
     .attention = "attn.",
     .out = "out_proj",
     .qkv = "Wqkv",
     .feed_forward = "ffn.",
     .bare = "ffn.act resid_attn_dropout"},
    {.family = "dbrx",
     .stem = "transformer.",
     .layers = "blocks",
     .embedding = "wte",
     .final_norm = "norm_f",
     .attention = "norm_attn_norm.attn.",
     .out = "out_proj",
     .qkv = "Wqkv",
     .moe = "ffn.",
     .router = "router.layer",
     .router_is_linear = true,
     .bare = ""},
    {.family = "starcoder2", .up = "c_fc", .down = "c_proj", .bare = "mlp.act"},
    {.family = "phi",
     .final_norm = "final_layernorm",
     .out = "dense",
     .up = "fc1",
     .down = "fc2",
     .bare = "mlp.activation_fn resid_dropout"},
    {.family = "phi3", .bare = "mlp.activation_fn resid_attn_dropout resid_mlp_dropout"},
    {.family = "glm", .bare = "mlp.activation_fn"},
    {.family = "glm4", .bare = "mlp.activation_fn"},
    {.family = "stablelm", .bare = "dropout mlp.act_fn"},
    {.family = "apertus", .bare = ""},
    {.family = "gpt_oss", .router = "router", .bare = ""},
    {.family = "lfm2", .out = "out_proj", .feed_forward = "feed_forward.", .gate = "w1", .up = "w3", .down = "w2", .bare = ""},
    {.family = "lfm2_moe",
     .out = "out_proj",
     .feed_forward = "feed_forward.",
     .gate = "w1",
     .up = "w3",
     .down = "w2",
     .moe = "feed_forward.",
     .bare = ""},
    {.family = "granitemoe", .moe = "block_sparse_moe.", .router = "router", .bare = "block_sparse_moe.experts.act_fn"},
    {.family = "granitemoeshared", .moe = "block_sparse_moe.", .router = "router", .bare = "block_sparse_moe.experts.act_fn"},
    {.family = "granitemoehybrid",
     .moe = "block_sparse_moe.",
     .router = "router",
     .state = "mamba.",
     .bare = "block_sparse_moe.experts.act_fn mamba.act shared_mlp.activation"},
    {.family = "jamba",
     .final_norm = "final_layernorm",
     .feed_forward = "feed_forward.",
     .moe = "feed_forward.",
     .router = "router",
     .state = "mamba.",
     .bare = "feed_forward.act_fn feed_forward.experts.act_fn mamba.act"},
    {.family = "llama4_text",
     .feed_forward = "feed_forward.",
     .moe = "feed_forward.",
     .router = "router",
     .shared = "feed_forward.shared_expert.",
     .router_is_linear = true,
     .bare = "feed_forward.experts.act_fn feed_forward.shared_expert.activation_fn self_attn.qk_norm"},
    {.family = "hunyuan_v1_moe",
     .router = "gate.wg",
     .shared = "mlp.shared_mlp.",
     .router_is_linear = true,
     .bare = "mlp.experts.act_fn mlp.shared_mlp.act_fn"},
    {.family = "afmoe", .router = "router.gate", .router_is_linear = true, .bare = kSharedBlock},
    {.family = "phimoe", .router = "router", .router_is_linear = true, .bare = kExpertBlock},
    {.family = "qwen2_moe", .shared = "mlp.shared_expert.", .bare = "mlp.experts.act_fn mlp.shared_expert.act_fn"},
    {.family = "qwen3_next", .shared = "mlp.shared_expert.", .bare = "mlp.experts.act_fn mlp.shared_expert.act_fn"},
    {.family = "qwen3_5_moe", .shared = "mlp.shared_expert.", .bare = "mlp.experts.act_fn mlp.shared_expert.act_fn"},
    {.family = "deepseek_v2", .bare = kSharedBlock},
    {.family = "deepseek_v3", .bare = kSharedBlock},
    {.family = "deepseek_v32", .bare = kSharedBlock},
    {.family = "ernie4_5_moe", .bare = kSharedBlock},
    {.family = "exaone_moe", .bare = kSharedBlock},
    {.family = "glm4_moe", .bare = kSharedBlock},
    {.family = "glm4_moe_lite", .bare = kSharedBlock},
    {.family = "glm_moe_dsa", .bare = kSharedBlock},
    {.family = "hy_v3", .bare = kSharedBlock},
    {.family = "dots1", .bare = kSharedBlock},
    {.family = "solar_open", .bare = kSharedBlock},
    {.family = "flex_olmo", .bare = kExpertBlock},
    {.family = "mellum", .bare = kExpertBlock},
    {.family = "minimax_m2", .bare = kExpertBlock},
    {.family = "mixtral", .bare = kExpertBlock},
    {.family = "olmoe", .bare = kExpertBlock},
    {.family = "qwen3_moe", .bare = kExpertBlock},
    {.family = "minimax", .bare = "mlp.experts.act_fn self_attn.act_fn"},
    {.family = "mimo_v2_flash", .bare = "mlp.act_fn mlp.experts.act_fn"},
    {.family = "gemma3n", .bare = "act_fn mlp.act_fn self_attn.v_norm"},
    {.family = "gemma4", .bare = "act_fn mlp.act_fn self_attn.v_norm"},
    {.family = "mamba", .stem = "backbone.", .embedding = "embeddings", .final_norm = "norm_f", .bare = "mixer.act"},
    {.family = "mamba2", .stem = "backbone.", .embedding = "embeddings", .final_norm = "norm_f", .bare = "mixer.act"},
    {.family = "falcon_mamba",
     .stem = "backbone.",
     .embedding = "embeddings",
     .final_norm = "norm_f",
     .bare = "mixer.act mixer.b_layernorm mixer.c_layernorm mixer.dt_layernorm"},
    {.family = "nemotron_h",
     .embedding = "embeddings",
     .final_norm = "norm_f",
     .attention = "mixer.",
     .feed_forward = "mixer.",
     .moe = "mixer.",
     .shared = "mixer.shared_experts.",
     .bare = "mixer.act mixer.act_fn mixer.experts.act_fn mixer.shared_experts.act_fn"},
};

/// The simulator's own words, in the order in which they are looked for.
std::string renamed(const ModuleNames& n, std::string_view leaf) {
  const auto joined = [](std::string_view a, std::string_view b) { return std::string(a) + std::string(b); };
  const std::pair<std::string_view, std::string> whole[] = {{"self_attn.o_proj", joined(n.attention, n.out)},
                                                            {"self_attn.qkv_proj", joined(n.attention, n.qkv)},
                                                            {"mlp.gate_proj", joined(n.feed_forward, n.gate)},
                                                            {"mlp.up_proj", joined(n.feed_forward, n.up)},
                                                            {"mlp.fc1", joined(n.feed_forward, n.up)},
                                                            {"mlp.down_proj", joined(n.feed_forward, n.down)},
                                                            {"mlp.gate", joined(n.moe, n.router)},
                                                            {"mlp.gate_up_proj", joined(n.feed_forward, "gate_up_proj")},
                                                            {"mlp.shared_expert_gate", "mlp.shared_expert_gate"}};
  for (const auto& [ours, theirs] : whole)
    if (leaf == ours) return theirs;
  const std::pair<std::string_view, std::string_view> begins[] = {
      {"mlp.shared_expert.", n.shared}, {"mlp.experts", "experts"},  {"mlp.fc1_latent", "fc1_latent"},
      {"mlp.fc2_latent", "fc2_latent"}, {"self_attn.", n.attention}, {"mixer.", n.state},
      {"mlp.", n.feed_forward}};
  for (const auto& [ours, theirs] : begins) {
    if (!leaf.starts_with(ours)) continue;
    const std::string_view rest = leaf.substr(ours.size());
    const bool of_moe = theirs == "experts" || theirs.ends_with("_latent");
    return of_moe ? joined(n.moe, joined(theirs, rest)) : joined(theirs, rest);
  }
  return std::string(leaf);
}

}  // namespace

const ModuleNames& module_names(std::string_view family) {
  for (const ModuleNames& row : kModuleNames)
    if (row.family == family) return row;
  return kModuleNames[0];
}

std::string name_in_layer(const ModuleNames& n, const Architecture& a, std::string_view leaf) {
  const Names& stored = names_of(a.model_type, a.family);
  const std::pair<std::string_view, std::string_view> norms[] = {{"input_layernorm", stored.pre_mixer},
                                                                 {"post_attention_layernorm", stored.post_mixer},
                                                                 {"pre_feedforward_layernorm", stored.pre_ff},
                                                                 {"post_feedforward_layernorm", stored.post_ff}};
  for (const auto& [ours, theirs] : norms)
    if (leaf == ours) return std::string(theirs);
  if (leaf == "self_attn.q_norm") return std::string(n.attention) + std::string(stored.q_norm);
  if (leaf == "self_attn.k_norm") return std::string(n.attention) + std::string(stored.k_norm);
  return renamed(n, leaf);
}

}  // namespace oomplan
