// Decoders that mix softmax attention with linear attention or state-space layers: Qwen3-Next and 3.5, Granite 4, Jamba, Kimi
// Linear.
// Shapes and defaults: transformers 5.23, models/{qwen3_next,qwen3_5,qwen3_5_moe,granitemoehybrid,jamba}/*.py.
#include <algorithm>

#include <fmt/format.h>

#include "catalog/families/state_space.hpp"
#include "catalog/families/traits.hpp"

namespace oomplan {
namespace {

std::string listed(const Fields& fields, std::string_view key, std::int64_t layer) {
  const auto types = fields.texts(key);
  if (layer >= static_cast<std::int64_t>(types.size()))
    fields.refuse(key, fmt::format("an entry for each layer, {} at least", layer + 1));
  return types[static_cast<std::size_t>(layer)];
}

// Qwen3-Next: gated DeltaNet, with full attention on every full_attention_interval-th layer or as layer_types says.
bool qwen_full(const Fields& fields, std::int64_t layer) {
  if (!fields.has("layer_types")) return (layer + 1) % fields.integer_or("full_attention_interval", 4, kLayerLimits) == 0;
  const std::string type = listed(fields, "layer_types", layer);
  if (type != "full_attention" && type != "linear_attention")
    fields.refuse("layer_types", "full_attention or linear_attention", "layer type '" + type + "'");
  return type == "full_attention";
}

Mixer gated_delta(const Fields& fields) {
  Mixer mixer;
  mixer.kind = MixerKind::gated_delta;
  mixer.linear_key_heads = fields.integer("linear_num_key_heads", kHeadLimits);
  mixer.linear_key_dim = fields.integer("linear_key_head_dim", kHeadDimLimits);
  mixer.linear_value_heads = fields.integer("linear_num_value_heads", kHeadLimits);
  mixer.linear_value_dim = fields.integer("linear_value_head_dim", kHeadDimLimits);
  mixer.conv_kernel = fields.integer("linear_conv_kernel_dim", {1, 64});
  return mixer;
}

Mixer qwen_attention(const Fields& fields, const Traits& traits) {
  Traits full = traits;
  full.mixer = nullptr;
  Mixer mixer = attention_without_span(fields, full);
  mixer.output_gate = chosen(fields, by("attn_output_gate", true));
  return mixer;
}

Mixer qwen_hybrid_mixer(const Fields& fields, const Traits& traits, std::int64_t layer) {
  return qwen_full(fields, layer) ? qwen_attention(fields, traits) : gated_delta(fields);
}

/// One full-attention layer, 2h -> h, three norms beside the layer's own.
void qwen_mtp(const Fields& fields, const Traits& traits, std::int64_t count, Architecture& out) {
  if (count == 0) return;
  std::int64_t full = read_layers(fields, traits) - 1;
  while (full > 0 && !qwen_full(fields, full)) --full;
  Layer layer;
  layer.mixer = qwen_attention(fields, traits);
  layer.feed_forward = dense_or_moe(fields, traits, full);
  layer.norm = traits.norm;
  out.mtp.layers = {{layer, count}};
  out.mtp.projections = 1;
  out.mtp.norms = 3;
}

/// Qwen3-Next states no key: its checkpoints carry one MTP layer (Qwen3-Coder-Next, of the same sizes, carries none).
void qwen_next_mtp(const Fields& fields, const Traits& traits, Architecture& out) {
  qwen_mtp(fields, traits, fields.integer_or("mtp_num_hidden_layers", 1, kFewLimits), out);
}
void qwen35_mtp(const Fields& fields, const Traits& traits, Architecture& out) {
  qwen_mtp(fields, traits, fields.integer_or("mtp_num_hidden_layers", 0, kFewLimits), out);
}

constexpr Traits kQwenNext{
    .family = "qwen3_next",
    .kv_heads_otherwise = 2,
    .head_dim_otherwise = 256,
    .q_bias = by("attention_bias"),
    .kv_bias = by("attention_bias"),
    .out_bias = by("attention_bias"),
    .qk_norm = QkNorm::head,
    .norm = NormKind::rms_plus_one,
    .rotary_fraction = 0.25,
    .moe = {.layers = MoeLayers::sparse_step,
            .shared_width = "shared_expert_intermediate_size",
            .shared_otherwise = 512,
            .shared_gate = true,
            .normalise_top_k = by("norm_topk_prob", true)},
    .is_moe = true,
    .mixer = qwen_hybrid_mixer,
    .finish = qwen_next_mtp,
};

constexpr Traits qwen35_moe() {
  Traits t = kQwenNext;
  t.family = "qwen3_5_moe";
  t.moe.layers = MoeLayers::all;
  t.moe.normalise_top_k = kAlways;
  t.moe.fused_experts = true;
  t.finish = qwen35_mtp;
  return t;
}

constexpr Traits qwen35() {
  Traits t = qwen35_moe();
  t.family = "qwen3_5";
  t.kv_heads_otherwise = 4;
  t.is_moe = false;
  return t;
}

// Granite 4: every layer has a Mamba-2 or an attention mixer, experts (none in the small ones) and a shared block.
Mixer granite_mixer(const Fields& fields, const Traits& traits, std::int64_t layer) {
  const std::string type = listed(fields, present_key(fields, "layer_types|layers_block_type"), layer);
  if (type == "mamba" || type == "linear_attention") {
    Mixer mamba = mamba2_mixer(fields, read_hidden(fields, traits), kGraniteMamba);
    mamba.chunk = fields.integer_or("mamba_chunk_size", 256, {1, 65536});
    const std::int64_t inner = read_hidden(fields, traits) * fields.integer_or("mamba_expand", 2, {1, 16});
    if (fields.has_class() && mamba.inner != inner)
      fields.refuse("mamba_d_head", fmt::format("{} in all heads together", inner),
                    "mamba_expand x hidden_size, says transformers");
    return mamba;
  }
  if (type != "attention" && type != "full_attention")
    fields.refuse("layer_types", "mamba (or linear_attention) or attention", "layer type '" + type + "'");
  Mixer mixer = attention_mixer(fields, traits, layer);
  if (fields.text_or("position_embedding_type", "nope") != "rope") mixer.rotary_dim = 0;
  return mixer;
}

FeedForward granite_feed_forward(const Fields& fields, const Traits& traits, std::int64_t) {
  if (fields.integer_or("num_local_experts", 0, {0, kExpertLimits.most}) > 0) return moe_feed_forward(fields, traits);
  FeedForward out;
  out.kind = FeedForwardKind::gated;
  out.activation = read_activation(fields, traits.activation, traits.activation_otherwise);
  out.width = fields.integer("shared_intermediate_size", kWidthLimits);
  out.fused_gate_up = true;
  return out;
}

constexpr Traits kGraniteHybrid{
    .family = "granitemoehybrid",
    .q_bias = by("attention_bias"),
    .kv_bias = by("attention_bias"),
    .out_bias = by("attention_bias"),
    .moe = {.width = "intermediate_size",
            .shared_width = "shared_intermediate_size",
            .fused_experts = true,
            .score = RouterScore::softmax_of_top_k},
    .is_moe = true,
    .mixer = granite_mixer,
    .feed_forward = granite_feed_forward,
};

// Jamba: attention on one layer of attn_layer_period, experts on one of expert_layer_period, Mamba-1 and dense blocks elsewhere.
bool at_offset(const Fields& fields, std::int64_t layer, std::string_view period, std::int64_t period_otherwise,
               std::string_view offset, std::int64_t offset_otherwise) {
  const std::int64_t p = fields.integer_or(period, period_otherwise, kLayerLimits);
  return layer % p == fields.integer_or(offset, offset_otherwise, {0, p - 1});
}

Mixer jamba_mixer(const Fields& fields, const Traits& traits, std::int64_t layer) {
  if (at_offset(fields, layer, "attn_layer_period", 8, "attn_layer_offset", 4)) return attention_mixer(fields, traits, layer);
  return mamba1_mixer(fields, read_hidden(fields, traits), kJambaMamba);
}

FeedForward jamba_feed_forward(const Fields& fields, const Traits& traits, std::int64_t layer) {
  const bool moe = at_offset(fields, layer, "expert_layer_period", 2, "expert_layer_offset", 1);
  const bool several = fields.integer("num_experts", kExpertLimits) > 1;
  return moe && several ? moe_feed_forward(fields, traits) : dense_feed_forward(fields, traits);
}

constexpr Traits kJamba{
    .family = "jamba",
    .kv_heads_otherwise = 8,
    .rotary = false,
    .moe = {.width = "intermediate_size"},
    .is_moe = true,
    .mixer = jamba_mixer,
    .feed_forward = jamba_feed_forward,
};

// Kimi Linear: Kimi's delta attention, with latent attention that rotates nothing on the layers of full_attn_layers (counted from
// 1). Shapes: configuration_kimi.py and modeling_kimi.py of moonshotai/Kimi-Linear-48B-A3B-Instruct. Kimi K3 states the same
// model_type and is another model.
bool kimi_full(const Fields& fields, std::int64_t layer) {
  const Fields linear = fields.object("linear_attn_config");
  const auto listed = linear.integers("full_attn_layers", {1, kLayerLimits.most});
  return std::find(listed.begin(), listed.end(), layer + 1) != listed.end();
}

Mixer kimi_latent(const Fields& fields, const Traits& traits) {
  Mixer mixer;
  mixer.kind = MixerKind::mla;
  mixer.heads = mixer.kv_heads = fields.integer(traits.heads, kHeadLimits);
  mixer.q_lora_rank = fields.integer_or("q_lora_rank", 0, kWidthLimits);
  mixer.kv_lora_rank = fields.integer("kv_lora_rank", kWidthLimits);
  mixer.nope_head_dim = fields.integer("qk_nope_head_dim", kHeadDimLimits);
  mixer.rope_head_dim = fields.integer("qk_rope_head_dim", kHeadDimLimits);
  mixer.head_dim = mixer.nope_head_dim + mixer.rope_head_dim;
  mixer.value_head_dim = fields.integer("v_head_dim", kHeadDimLimits);
  mixer.q_bias = mixer.k_bias = mixer.out_bias = chosen(fields, by("attention_bias"));
  return mixer;
}

Mixer kimi_mixer(const Fields& fields, const Traits& traits, std::int64_t layer) {
  for (const char* key : {"attn_res_block_size", "mla_use_output_gate", "latent_moe_use_norm"})
    if (fields.has(key)) fields.refuse(key, "a config without it", "not supported yet: Kimi K3");
  if (kimi_full(fields, layer)) return kimi_latent(fields, traits);
  const Fields linear = fields.object("linear_attn_config");
  Mixer mixer;
  mixer.kind = MixerKind::kimi_delta;
  mixer.linear_key_heads = mixer.linear_value_heads = linear.integer("num_heads", kHeadLimits);
  mixer.linear_key_dim = mixer.linear_value_dim = linear.integer("head_dim", kHeadDimLimits);
  mixer.conv_kernel = linear.integer("short_conv_kernel_size", {1, 64});
  return mixer;
}

constexpr Traits kKimiLinear{
    .family = "kimi_linear",
    .positions = "max_position_embeddings|model_max_length",
    .tied = kNever,  // the class ties nothing, whatever the file says
    .rotary = false,
    .moe = {.layers = MoeLayers::after_first_k,
            .first_dense = "!first_k_dense_replace",
            .first_dense_otherwise = 1,
            .shared_count = "num_shared_experts",
            .correction_bias = kAlways,
            .normalise_top_k = by("moe_renormalize", true),
            .score = RouterScore::sigmoid},
    .is_moe = true,
    .mixer = kimi_mixer,
};

constexpr Family kHybridFamilies[] = {
    {"kimi_linear", "", kKimiLinear},         {"qwen3_next", "", kQwenNext},
    {"qwen3_5_text", "", qwen35()},           {"qwen3_5_moe_text", "", qwen35_moe()},
    {"granitemoehybrid", "", kGraniteHybrid}, {"jamba", "", kJamba},
};

}  // namespace

std::span<const Family> hybrid_families() { return kHybridFamilies; }

}  // namespace oomplan
