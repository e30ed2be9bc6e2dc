// Decoders with multi-head latent attention: DeepSeek V2 and its relatives.
// Shapes and defaults: transformers 5.23, models/{deepseek_v2,deepseek_v3,deepseek_v32,deepseek_v4,glm4_moe_lite,glm_moe_dsa,
// mistral4}/{configuration,modeling}_*.py; MTP blocks: index of the DeepSeek-V3 and GLM-5 checkpoints.
#include <algorithm>

#include <fmt/format.h>

#include "catalog/families/mtp.hpp"
#include "catalog/families/traits.hpp"

namespace oomplan {
namespace {

void read_mtp(std::int64_t count, bool copies, Architecture& out) {
  if (count == 0) return;
  out.mtp.layers = {{out.runs.back().layer, count}};
  out.mtp.projections = count;
  out.mtp.norms = 3 * count;
  out.mtp.own_embedding = out.mtp.own_head = copies;
}

Mixer latent_mixer(const Fields& fields, const Traits& traits, std::int64_t value_head_dim) {
  Mixer mixer;
  mixer.kind = MixerKind::mla;
  mixer.heads = mixer.kv_heads = fields.integer(traits.heads, kHeadLimits);
  mixer.q_lora_rank = fields.integer_or("q_lora_rank", 0, kWidthLimits);
  mixer.kv_lora_rank = fields.integer("kv_lora_rank", kWidthLimits);
  mixer.nope_head_dim = fields.integer("qk_nope_head_dim", kHeadDimLimits);
  mixer.rope_head_dim = mixer.rotary_dim = fields.integer("qk_rope_head_dim", kHeadDimLimits);
  if (mixer.rotary_dim % 2 != 0) fields.refuse("qk_rope_head_dim", "an even number", "pairs of it rotate");
  mixer.head_dim = mixer.nope_head_dim + mixer.rope_head_dim;
  mixer.value_head_dim = value_head_dim;
  mixer.q_bias = chosen(fields, traits.q_bias);
  mixer.k_bias = chosen(fields, traits.kv_bias);
  mixer.out_bias = chosen(fields, traits.out_bias);
  return mixer;
}

Mixer mla_mixer(const Fields& fields, const Traits& traits, std::int64_t) {
  return latent_mixer(fields, traits, fields.integer("v_head_dim", kHeadDimLimits));
}

/// The indexer of DeepSeek V3.2; in GLM-5.2 layers whose indexer_types entry is "shared" use an earlier layer's.
Mixer indexed_mixer(const Fields& fields, const Traits& traits, std::int64_t layer) {
  Mixer mixer = mla_mixer(fields, traits, layer);
  if (fields.has("indexer_types") && !ignored_by_class(fields, "indexer_types")) {
    const auto types = fields.texts("indexer_types");
    if (layer >= static_cast<std::int64_t>(types.size())) fields.refuse("indexer_types", "an entry for each layer");
    mixer.index_shared = types[static_cast<std::size_t>(layer)] == "shared";
  }
  mixer.index_top = fields.integer_or("index_topk", 2048, kPositionLimits);
  if (mixer.index_shared) return mixer;
  mixer.index_heads = fields.integer("index_n_heads", kHeadLimits);
  mixer.index_head_dim = fields.integer("index_head_dim", kHeadDimLimits);
  return mixer;
}

/// Of the larger V2 models; V2-Lite states groups that its "greedy" router does not look at.
void read_v2_groups(const Fields& fields, const Traits&, Architecture& out) {
  if (fields.text_or("topk_method", "greedy") != "group_limited_greedy") return;
  for (LayerRun& run : out.runs) {
    FeedForward& ff = run.layer.feed_forward;
    if (ff.kind != FeedForwardKind::moe) continue;
    ff.router_groups = fields.integer("n_group", {1, ff.experts});
    ff.router_top_groups = fields.integer("topk_group", {1, ff.router_groups});
  }
}

constexpr Traits kDeepSeekV2{
    .family = "deepseek_v2",
    .q_bias = by("attention_bias"),
    .kv_bias = by("attention_bias"),
    .out_bias = by("attention_bias"),
    .mlp_bias = by("mlp_bias"),
    .moe = {.layers = MoeLayers::after_first_k,
            .shared_count = "n_shared_experts",
            .router_in_fp32 = true,
            .weights_in_fp32 = true},
    .is_moe = true,
    .mixer = mla_mixer,
    .finish = read_v2_groups,
};

constexpr Traits deepseek_v3() {
  Traits t = kDeepSeekV2;
  t.family = "deepseek_v3";
  t.moe.correction_bias = kAlways;
  t.moe.score = RouterScore::sigmoid;
  t.moe.groups_otherwise = 8;
  t.moe.top_groups_otherwise = 4;
  t.finish = read_deepseek_mtp;
  return t;
}

constexpr Traits deepseek_v32() {
  Traits t = deepseek_v3();
  t.family = "deepseek_v32";
  t.mixer = indexed_mixer;
  t.mlp_bias = kNever;
  t.moe.experts = "!num_experts|n_routed_experts";  // the class puts num_experts over n_routed_experts
  return t;
}

/// The MTP layer has an indexer even where the last layer shares one.
void glm5_mtp(const Fields& fields, const Traits& traits, Architecture& out) {
  read_deepseek_mtp_bare(fields, traits, out);
  for (LayerRun& run : out.mtp.layers) {
    run.layer.mixer.index_shared = false;
    run.layer.mixer.index_heads = fields.integer("index_n_heads", kHeadLimits);
    run.layer.mixer.index_head_dim = fields.integer("index_head_dim", kHeadDimLimits);
  }
}

constexpr Traits glm_moe_dsa() {
  Traits t = deepseek_v32();
  t.family = "glm_moe_dsa";
  t.finish = glm5_mtp;
  return t;
}

/// Youtu: DeepSeek's attention over dense layers.
constexpr Traits youtu() {
  Traits t = kDeepSeekV2;
  t.family = "youtu";
  t.tied = by("tie_word_embeddings", true);
  t.is_moe = false;
  t.finish = nullptr;
  return t;
}

/// MiniCPM 3: the same; the width of a value is hidden / heads unless stated.
Mixer minicpm3_mixer(const Fields& fields, const Traits& traits, std::int64_t layer) {
  if (fields.has("v_head_dim")) return mla_mixer(fields, traits, layer);
  const std::int64_t heads = fields.integer(traits.heads, kHeadLimits), hidden = read_hidden(fields, traits);
  if (hidden % heads != 0) fields.refuse(traits.hidden, fmt::format("a multiple of {} (heads)", heads));
  return latent_mixer(fields, traits, hidden / heads);
}
constexpr Traits minicpm3() {
  Traits t = youtu();
  t.family = "minicpm3";
  t.mixer = minicpm3_mixer;
  return t;
}

constexpr Traits glm4_moe_lite() {
  Traits t = deepseek_v3();
  t.family = "glm4_moe_lite";
  t.moe.first_dense_otherwise = 1;
  return t;
}

/// Mistral 4: no correction bias, no dense layers.
constexpr Traits mistral4() {
  Traits t = kDeepSeekV2;
  t.family = "mistral4";
  t.moe.shared_otherwise = 1;
  return t;
}

/// How many tokens leave one entry: listed by compress_ratios, or by the layer's type as transformers 5 saves it.
std::int64_t v4_ratio(const Fields& fields, std::int64_t layer) {
  if (fields.has("compress_ratios") || !fields.has("layer_types")) {
    const auto ratios = fields.integers("compress_ratios", kOptionalWidthLimits);
    if (layer >= static_cast<std::int64_t>(ratios.size())) fields.refuse("compress_ratios", "an entry for each layer");
    return ratios[static_cast<std::size_t>(layer)];
  }
  const auto types = fields.texts("layer_types");
  if (layer >= static_cast<std::int64_t>(types.size())) fields.refuse("layer_types", "an entry for each layer");
  const std::string& type = types[static_cast<std::size_t>(layer)];
  if (type == "sliding_attention") return 0;
  const bool sparse = type == "compressed_sparse_attention";
  if (!sparse && type != "heavily_compressed_attention")
    fields.refuse("layer_types", "sliding_attention, compressed_sparse_attention or heavily_compressed_attention",
                  "layer type '" + type + "'");
  const auto rates = fields.object_if("compress_rates");
  const std::int64_t otherwise = sparse ? 4 : 128;
  return rates ? rates->integer_or(type, otherwise, kOptionalWidthLimits) : otherwise;
}

/// How many layers, the first ones, route by a table of token ids. A list of the layers' types comes first in transformers.
std::int64_t v4_hash_layers(const Fields& fields) {
  const bool listed = fields.has("mlp_layer_types") && (fields.has_class() || !fields.has("num_hash_layers"));
  if (!listed) return fields.integer_or("num_hash_layers", fields.has_class() ? 3 : 0, kFewLimits);
  const auto types = fields.texts("mlp_layer_types");
  return std::count(types.begin(), types.end(), "hash_moe");
}

// DeepSeek V4: one shared k/v head, low-rank queries and grouped low-rank outputs, sinks; every layer attends to a window, most
// also to compressed entries, picked by an indexer where four tokens make one. Residuals run in hc_mult streams.
Mixer v4_mixer(const Fields& fields, const Traits& traits, std::int64_t layer) {
  Mixer mixer;
  mixer.kind = MixerKind::mla;
  mixer.heads = fields.integer(traits.heads, kHeadLimits);
  mixer.kv_heads = fields.integer_or(traits.kv_heads, 1, {1, 1});
  mixer.head_dim = mixer.value_head_dim = fields.integer("head_dim", kHeadDimLimits);
  mixer.q_lora_rank = fields.integer("q_lora_rank", kWidthLimits);
  mixer.rope_head_dim = mixer.rotary_dim = fields.integer("qk_rope_head_dim", {1, mixer.head_dim});
  mixer.nope_head_dim = mixer.kv_lora_rank = mixer.head_dim - mixer.rope_head_dim;  // cached: kv_lora_rank + rope_head_dim
  mixer.out_groups = fields.integer("o_groups", {1, mixer.heads});
  if (mixer.heads % mixer.out_groups != 0) fields.refuse("o_groups", fmt::format("a divisor of {} (the heads)", mixer.heads));
  mixer.out_lora_rank = fields.integer("o_lora_rank", kWidthLimits);
  mixer.sinks = true;
  mixer.span = AttentionSpan::sliding;
  mixer.window = fields.integer("sliding_window", kPositionLimits);
  mixer.compress_ratio = v4_ratio(fields, layer);
  if (mixer.compress_ratio != 4) return mixer;
  mixer.index_heads = fields.integer("index_n_heads", kHeadLimits);
  mixer.index_head_dim = fields.integer("index_head_dim", kHeadDimLimits);
  mixer.index_chosen = fields.integer_or("index_topk", 512, kPositionLimits);
  return mixer;
}

/// The first num_hash_layers layers route by a table of token ids: no correction bias.
void v4_layer(const Fields& fields, const Traits&, std::int64_t i, Layer& layer) {
  layer.feed_forward.token_table = i < v4_hash_layers(fields);
  if (layer.feed_forward.token_table) layer.feed_forward.correction_bias = false;
  layer.streams = fields.integer("hc_mult", {1, 64});
  if (fields.has_class() && layer.feed_forward.shared_width != layer.feed_forward.expert_width)
    fields.refuse("n_shared_experts", "1", "the class in transformers passes over the key");
}

/// One more layer, uncompressed or as its own entry of compress_ratios says, two h x h projections, three norms, stream weights.
void v4_mtp(const Fields& fields, const Traits& traits, Architecture& out) {
  const std::int64_t count = fields.integer_or("num_nextn_predict_layers", 0, kFewLimits);
  if (count == 0) return;
  const std::int64_t layers = out.layers();
  Layer layer = out.runs.back().layer;
  const auto entries = fields.has("compress_ratios")
                           ? static_cast<std::int64_t>(fields.integers("compress_ratios", kOptionalWidthLimits).size())
                           : layers;
  layer.mixer = v4_mixer(fields, traits, entries > layers ? layers : layers - 1);
  out.mtp.layers = {{layer, count}};
  out.mtp.projections = count;
  out.mtp.norms = 3 * count;
}

constexpr Traits kDeepSeekV4{
    .family = "deepseek_v4",
    .mlp_bias = by("mlp_bias"),
    .moe = {.shared_count = "n_shared_experts",
            .shared_otherwise = 1,
            .correction_bias = kAlways,
            .score = RouterScore::sqrt_softplus,
            .router_in_fp32 = true,
            .weights_in_fp32 = true},
    .is_moe = true,
    .mixer = v4_mixer,
    .adjust = v4_layer,
    .finish = v4_mtp,
};

constexpr Family kMlaFamilies[] = {
    {"deepseek_v2", "", kDeepSeekV2},
    {"deepseek_v3", "", deepseek_v3()},
    {"kimi_k2", "", deepseek_v3()},
    {"deepseek_v32", "", deepseek_v32()},
    {"glm_moe_dsa", "", glm_moe_dsa()},
    {"glm4_moe_lite", "", glm4_moe_lite()},
    {"mistral4", "", mistral4()},
    {"youtu", "", youtu()},
    {"minicpm3", "", minicpm3()},
    {"deepseek_v4", "", kDeepSeekV4},
    {"deepseek_ref", "DeepseekV4ForCausalLM", kDeepSeekV4},
};

}  // namespace

void read_deepseek_mtp(const Fields& fields, const Traits&, Architecture& out) {
  read_mtp(fields.integer_or("num_nextn_predict_layers", 0, kFewLimits), true, out);
}
void read_deepseek_mtp_once(const Fields& fields, const Traits&, Architecture& out) {
  read_mtp(fields.integer_or("num_nextn_predict_layers", 1, kFewLimits), true, out);
}
void read_deepseek_mtp_bare(const Fields& fields, const Traits&, Architecture& out) {
  read_mtp(fields.integer_or("num_nextn_predict_layers", 0, kFewLimits), false, out);
}

std::span<const Family> mla_families() { return kMlaFamilies; }

}  // namespace oomplan
