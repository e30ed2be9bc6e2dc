// Dense decoders of 2025 and later, one row each: EXAONE 4, CWM, Arcee, Jais 2, Nemotron, Apertus, HyperCLOVA X, Helium, LFM2.
// Biases, norms and defaults: transformers 5.23, models/<family>/{configuration,modeling}_<family>.py.
#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "catalog/families/recent.hpp"
#include "catalog/families/traits.hpp"

namespace oomplan {
namespace {

constexpr Traits kExaone4{
    .family = "exaone4",
    .kv_heads_otherwise = 32,
    .qk_norm = QkNorm::head,
    .norm_place = NormPlace::post,
    .span = SpanRule::every_nth_full,
    .span_period = 4,
    .window_otherwise = 4096,
    .mixer = exaone_mixer,
};

/// CWM: the first of every four layers attends to everything.
void cwm_span(const Fields& fields, const Traits&, std::int64_t i, Layer& layer) {
  if (fields.has("layer_types") || i % 4 == 0) return;
  layer.mixer.span = AttentionSpan::sliding;
  layer.mixer.window = fields.integer_or("sliding_window", 8192, kPositionLimits);
}
constexpr Traits kCwm{.family = "cwm",
                      .kv_heads_otherwise = 8,
                      .head_dim_otherwise = 128,
                      .mlp_bias = by("mlp_bias"),
                      .window_otherwise = 8192,
                      .adjust = cwm_span};

// Feed-forward blocks of two matrices with a squared ReLU between them.
constexpr Traits kArcee{
    .family = "arcee",
    .q_bias = by("attention_bias"),
    .kv_bias = by("attention_bias"),
    .out_bias = by("attention_bias"),
    .mlp_bias = by("mlp_bias"),
    .gated = false,
    .activation_otherwise = "relu2",
};

constexpr Traits kJais2{
    .family = "jais2",
    .q_bias = by("attention_bias", true),
    .kv_bias = by("attention_bias", true),
    .out_bias = by("attention_bias", true),
    .mlp_bias = by("mlp_bias", true),
    .norm = NormKind::layer,
    .gated = false,
    .activation_otherwise = "relu2",
};

/// Its LayerNorm multiplies by (1 + weight).
constexpr Traits nemotron() {
  Traits t = kArcee;
  t.family = "nemotron";
  t.norm = NormKind::layer;
  t.rotary_fraction = 0.5;
  return t;
}

/// Apertus: xIELU has two learned and two fixed numbers in every layer.
void apertus_activation(const Fields&, const Traits&, std::int64_t, Layer& layer) {
  if (layer.feed_forward.activation == Activation::xielu) layer.layer_scalars = layer.buffer_scalars = 2;
}
constexpr Traits kApertus{
    .family = "apertus",
    .q_bias = by("attention_bias"),
    .kv_bias = by("attention_bias"),
    .out_bias = by("attention_bias"),
    .qk_norm = QkNorm::head,
    .gated = false,
    .activation_otherwise = "xielu",
    .adjust = apertus_activation,
};

void hyperclovax_norms(const Fields& fields, const Traits&, std::int64_t, Layer& layer) {
  layer.norm_place = fields.flag_or("use_post_norm", true) ? NormPlace::pre_and_post : NormPlace::pre;
}
constexpr Traits kHyperClovaX{
    .family = "hyperclovax",
    .q_bias = by("attention_bias"),
    .kv_bias = by("attention_bias"),
    .out_bias = by("attention_bias"),
    .mlp_bias = by("mlp_bias"),
    .adjust = hyperclovax_norms,
};

/// Its output projection is hidden x hidden whatever the heads are.
void helium_heads(const Fields& fields, const Traits&, std::int64_t, Layer& layer) {
  const std::int64_t hidden = fields.integer("hidden_size", kHiddenLimits);
  if (layer.mixer.out_width() != hidden)
    fields.refuse("head_dim", fmt::format("{} in all heads together", hidden), "transformers' output projection takes no other");
}

constexpr Traits kHelium{
    .family = "helium",
    .kv_heads_otherwise = 20,
    .head_dim_otherwise = 128,
    .q_bias = by("attention_bias"),
    .kv_bias = by("attention_bias"),
    .mlp_bias = by("mlp_bias"),
    .adjust = helium_heads,
};

/// The stated width is adjusted: two thirds of it, scaled, rounded up.
FeedForward lfm2_feed_forward(const Fields& fields, const Traits& traits, std::int64_t) {
  FeedForward out = dense_feed_forward(fields, traits);
  if (!fields.flag_or("block_auto_adjust_ff_dim", true)) return out;
  out.width = 2 * out.width / 3;
  if (fields.is_null("block_ffn_dim_multiplier")) return out;
  const double scaled = fields.number_or("block_ffn_dim_multiplier", 1, 0.001, 64) * static_cast<double>(out.width);
  out.width = round_up(static_cast<std::int64_t>(scaled), fields.integer_or("block_multiple_of", 256, kWidthLimits));
  return out;
}

constexpr Traits kLfm2{
    .family = "lfm2",
    .width = "!block_ff_dim|intermediate_size",
    .kv_heads_otherwise = 8,
    .tied = by("!tie_embedding|tie_word_embeddings", true),
    .qk_norm = QkNorm::head,
    .mixer = short_conv_mixer,
    .feed_forward = lfm2_feed_forward,
};

constexpr Family kDenseRecentFamilies[] = {
    {"exaone4", "", kExaone4},
    {"cwm", "", kCwm},
    {"arcee", "", kArcee},
    {"jais2", "", kJais2},
    {"nemotron", "", nemotron()},
    {"apertus", "", kApertus},
    {"hyperclovax", "", kHyperClovaX},
    {"helium", "", kHelium},
    {"lfm2", "", kLfm2},
};

}  // namespace

Mixer exaone_mixer(const Fields& fields, const Traits& traits, std::int64_t layer) {
  const bool windows = !fields.is_null("sliding_window");
  Traits spans = traits;
  if (!windows) spans.span = SpanRule::full;
  Mixer mixer = attention_mixer(fields, spans, layer);
  if (windows && mixer.span == AttentionSpan::full) mixer.rotary_dim = 0;
  return mixer;
}

Mixer short_conv_mixer(const Fields& fields, const Traits& traits, std::int64_t layer) {
  const auto types = fields.has("layer_types") ? fields.texts("layer_types") : std::vector<std::string>{};
  bool full = true;
  if (!types.empty()) {
    if (layer >= static_cast<std::int64_t>(types.size())) fields.refuse("layer_types", "an entry for each layer");
    const std::string& type = types[static_cast<std::size_t>(layer)];
    if (type != "conv" && type != "full_attention")
      fields.refuse("layer_types", "conv or full_attention", "layer type '" + type + "'");
    full = type == "full_attention";
  } else if (traits.family == "lfm2_moe" && fields.has_class()) {
    fields.refuse("layer_types", "a list", "the class in transformers needs it");
  } else if (fields.has("full_attn_idxs")) {
    const auto listed = fields.integers("full_attn_idxs", kFewLimits);
    full = std::find(listed.begin(), listed.end(), layer) != listed.end();
  }
  if (!full) {
    Mixer mixer;
    mixer.kind = MixerKind::short_conv;
    mixer.conv_kernel = fields.integer_or("conv_L_cache", 3, {1, 64});
    mixer.conv_bias = mixer.q_bias = mixer.out_bias = fields.flag_or("conv_bias", false);
    return mixer;
  }
  Mixer mixer;
  mixer.kind = MixerKind::attention;
  mixer.heads = fields.integer(traits.heads, kHeadLimits);
  mixer.kv_heads = fields.integer_or(traits.kv_heads, 8, kHeadLimits);
  if (mixer.heads % mixer.kv_heads != 0) fields.refuse(traits.kv_heads, "a divisor of the heads");
  const std::int64_t hidden = read_hidden(fields, traits);
  const bool stated = fields.has("head_dim");
  if (!stated && hidden % mixer.heads != 0) fields.refuse(traits.hidden, "a multiple of the heads");
  mixer.head_dim = stated ? fields.integer("head_dim", kHeadDimLimits) : hidden / mixer.heads;
  mixer.value_head_dim = mixer.rotary_dim = mixer.head_dim;
  mixer.qk_norm = QkNorm::head;
  return mixer;
}

std::span<const Family> dense_recent_families() { return kDenseRecentFamilies; }

}  // namespace oomplan
