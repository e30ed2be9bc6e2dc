// Mixtures of experts of 2025 and later, one row each: K-EXAONE, Hunyuan 3, Mellum 2, Solar Open, FlexOlmo, Granite 3 with a
// shared block, Trinity, LFM2-MoE, MiniMax-Text-01.
// Routers, biases and defaults: transformers 5.23, models/<family>/{configuration,modeling}_<family>.py.
#include <fmt/format.h>

#include "catalog/families/mtp.hpp"
#include "catalog/families/recent.hpp"
#include "catalog/families/traits.hpp"

namespace oomplan {
namespace {

constexpr MoeTraits kSigmoid{.layers = MoeLayers::after_first_k,
                             .correction_bias = kAlways,
                             .normalise_top_k = by("norm_topk_prob", true),
                             .score = RouterScore::sigmoid,
                             .router_in_fp32 = true,
                             .weights_in_fp32 = true};

constexpr Traits exaone_moe() {
  Traits t{.family = "exaone_moe",
           .kv_heads_otherwise = 32,
           .qk_norm = QkNorm::head,
           .span = SpanRule::every_nth_full,
           .span_period = 4,
           .window_otherwise = 4096,
           .moe = kSigmoid,
           .is_moe = true,
           .mixer = exaone_mixer};
  t.moe.first_dense_otherwise = 1;
  t.moe.shared_count = "num_shared_experts";
  t.moe.shared_otherwise = 1;
  t.moe.groups_otherwise = t.moe.top_groups_otherwise = 1;
  return t;
}

void hy_v3_sum(const Fields& fields, const Traits&, std::int64_t, Layer& layer) {
  layer.feed_forward.sums_in_fp32 =
      layer.feed_forward.kind == FeedForwardKind::moe && fields.flag_or("enable_moe_fp32_combine", true);
}

constexpr Traits hy_v3() {
  Traits t{.family = "hy_v3",
           .kv_heads_otherwise = 8,
           .head_dim_otherwise = 128,
           .q_bias = by("attention_bias"),
           .kv_bias = by("attention_bias"),
           .out_bias = by("attention_bias"),
           .mlp_bias = by("mlp_bias"),
           .qk_norm = QkNorm::head,
           .moe = kSigmoid,
           .is_moe = true,
           .adjust = hy_v3_sum,
           .finish = read_deepseek_mtp_bare};
  t.moe.first_dense_otherwise = 1;
  t.moe.shared_count = "num_shared_experts";
  t.moe.shared_otherwise = 1;
  t.moe.normalise_top_k = kAlways;
  return t;
}

constexpr Traits kMellum{
    .family = "mellum",
    .kv_heads_otherwise = 4,
    .head_dim_otherwise = 128,
    .q_bias = by("attention_bias"),
    .kv_bias = by("attention_bias"),
    .out_bias = by("attention_bias"),
    .qk_norm = QkNorm::head,
    .window_otherwise = 1024,
    .moe = {.normalise_top_k = by("norm_topk_prob", true)},
    .is_moe = true,
};

constexpr Traits solar_open() {
  Traits t{.family = "solar_open",
           .kv_heads_otherwise = 8,
           .head_dim_otherwise = 128,
           .q_bias = by("attention_bias"),
           .kv_bias = by("attention_bias"),
           .moe = kSigmoid,
           .is_moe = true};
  t.moe.layers = MoeLayers::all;
  t.moe.shared_count = "n_shared_experts";
  t.moe.shared_otherwise = 1;
  t.moe.groups_otherwise = t.moe.top_groups_otherwise = 1;
  return t;
}

constexpr Traits kFlexOlmo{
    .family = "flex_olmo",
    .q_bias = by("attention_bias"),
    .kv_bias = by("attention_bias"),
    .out_bias = by("attention_bias"),
    .qk_norm = QkNorm::full,
    .norm_place = NormPlace::post,
    .moe = {.width = "intermediate_size"},
    .is_moe = true,
};

constexpr Traits kGraniteMoeShared{
    .family = "granitemoeshared",
    .q_bias = by("attention_bias"),
    .kv_bias = by("attention_bias"),
    .out_bias = by("attention_bias"),
    .moe = {.width = "intermediate_size",
            .shared_width = "shared_intermediate_size",
            .fused_experts = true,
            .score = RouterScore::softmax_of_top_k},
    .is_moe = true,
};

/// Trinity: a sigmoid gate on the output of attention; layers that attend to everything have no positions.
void afmoe_layer(const Fields& fields, const Traits& traits, std::int64_t i, Layer& layer) {
  if (layer.mixer.q_bias)
    fields.refuse("attention_bias", "false", "queries with a bias beside a gate without one are not described");
  if (!fields.has("layer_types")) {
    const std::int64_t period = fields.integer_or("global_attn_every_n_layers", 4, kLayerLimits);
    const bool windowed = (i + 1) % period != 0;
    layer.mixer.span = windowed ? AttentionSpan::sliding : AttentionSpan::full;
    layer.mixer.window = windowed ? fields.integer_or("sliding_window", traits.window_otherwise, kPositionLimits) : 0;
  }
  if (layer.mixer.span == AttentionSpan::full) layer.mixer.rotary_dim = 0;
}

void afmoe_embedding(const Fields& fields, const Traits&, Architecture& out) {
  out.scaled_embedding = fields.flag_or("mup_enabled", false);
}

constexpr Traits afmoe() {
  Traits t{.family = "afmoe",
           .head_dim_otherwise = 128,
           .q_bias = by("attention_bias"),
           .kv_bias = by("attention_bias"),
           .out_bias = by("attention_bias"),
           .qk_norm = QkNorm::head,
           .norm_place = NormPlace::pre_and_post,
           .output_gate = true,
           .window_otherwise = 1024,
           .moe = kSigmoid,
           .is_moe = true,
           .adjust = afmoe_layer,
           .finish = afmoe_embedding};
  t.moe.first_dense = "num_dense_layers";
  t.moe.first_dense_otherwise = 1;
  t.moe.shared_count = "num_shared_experts";
  t.moe.shared_otherwise = 2;
  t.moe.normalise_top_k = kAlways;
  return t;
}

constexpr Traits lfm2_moe() {
  Traits t{.family = "lfm2_moe",
           .kv_heads_otherwise = 8,
           .tied = by("!tie_embedding|tie_word_embeddings", true),
           .qk_norm = QkNorm::head,
           .moe = kSigmoid,
           .is_moe = true,
           .mixer = short_conv_mixer};
  t.moe.first_dense = "num_dense_layers";
  t.moe.first_dense_otherwise = 2;
  t.moe.correction_bias = by("use_expert_bias", true);
  t.moe.router_in_fp32 = t.moe.weights_in_fp32 = false;
  return t;
}

/// MiniMax-Text-01 as transformers stores it: lightning attention on layers that layer_types calls linear.
Mixer minimax_mixer(const Fields& fields, const Traits& traits, std::int64_t layer) {
  bool linear = (layer + 1) % 2 == 0;
  if (fields.has("layer_types")) {
    const auto types = fields.texts("layer_types");
    if (layer >= static_cast<std::int64_t>(types.size())) fields.refuse("layer_types", "an entry for each layer");
    linear = types[static_cast<std::size_t>(layer)] == "linear_attention";
  }
  if (!linear) return attention_mixer(fields, traits, layer);
  Mixer lightning;
  lightning.kind = MixerKind::lightning;
  lightning.chunk = fields.integer_or("block_size", 256, {1, 65536});
  lightning.heads = lightning.kv_heads = fields.integer(traits.heads, kHeadLimits);
  const std::int64_t hidden = read_hidden(fields, traits);
  if (!fields.has("head_dim") && hidden % lightning.heads != 0)
    fields.refuse("hidden_size", fmt::format("a multiple of {} (heads)", lightning.heads));
  lightning.head_dim = lightning.value_head_dim = fields.integer_or("head_dim", hidden / lightning.heads, kHeadDimLimits);
  return lightning;
}

constexpr Traits kMiniMax{
    .family = "minimax",
    .kv_heads_otherwise = 8,
    .moe = {.width = "intermediate_size", .normalise_top_k = kAlways, .weights_in_fp32 = true},
    .is_moe = true,
    .mixer = minimax_mixer,
};

constexpr Family kMoeRecentFamilies[] = {
    {"exaone_moe", "", exaone_moe()}, {"hy_v3", "", hy_v3()},       {"mellum", "", kMellum},
    {"solar_open", "", solar_open()}, {"flex_olmo", "", kFlexOlmo}, {"granitemoeshared", "", kGraniteMoeShared},
    {"afmoe", "", afmoe()},           {"lfm2_moe", "", lfm2_moe()}, {"minimax", "", kMiniMax},
};

}  // namespace

std::span<const Family> moe_recent_families() { return kMoeRecentFamilies; }

}  // namespace oomplan
