// Decoders with plain attention and a mixture of experts.
// Routers, biases and defaults: transformers 5.23, models/<family>/{configuration,modeling}_<family>.py; Ling 2.0, MiniMax-M1,
// Grok-1 and Step-3 have code of their own beside their checkpoints. Whether routing weights stay in fp32 was seen in
// recordings of transformers 5.23: they do in Mixtral, DeepSeek, dots and MiniMax-M2.
#include <algorithm>

#include <fmt/format.h>

#include "catalog/families/mtp.hpp"
#include "catalog/families/traits.hpp"

namespace oomplan {
namespace {

constexpr Traits kMixtral{
    .family = "mixtral",
    .kv_heads_otherwise = 8,
    .span = SpanRule::window,
    .moe = {.width = "intermediate_size", .normalise_top_k = kAlways, .weights_in_fp32 = true},
    .is_moe = true,
};

/// Grok-1 calls itself a mixtral: four norms a layer, GELU, tied.
constexpr Traits grok() {
  Traits t = kMixtral;
  t.family = "grok-1";
  t.tied = by("tie_word_embeddings", true);
  t.norm_place = NormPlace::pre_and_post;
  t.activation_otherwise = "gelu";
  t.span = SpanRule::full;
  return t;
}

constexpr Traits kQwen2Moe{
    .family = "qwen2_moe",
    .kv_heads_otherwise = 16,
    .q_bias = by("qkv_bias", true),
    .kv_bias = by("qkv_bias", true),
    .span = SpanRule::qwen,
    .moe = {.layers = MoeLayers::sparse_step,
            .shared_width = "shared_expert_intermediate_size",
            .shared_otherwise = 5632,
            .shared_gate = true},
    .is_moe = true,
};

constexpr Traits kQwen3Moe{
    .family = "qwen3_moe",
    .kv_heads_otherwise = 4,
    .q_bias = by("attention_bias"),
    .kv_bias = by("attention_bias"),
    .out_bias = by("attention_bias"),
    .qk_norm = QkNorm::head,
    .span = SpanRule::qwen,
    .moe = {.layers = MoeLayers::sparse_step},
    .is_moe = true,
};

constexpr Traits qwen3_vl_moe() {
  Traits t = kQwen3Moe;
  t.kv_heads_otherwise = 16;
  t.head_dim_otherwise = 128;
  t.moe.fused_experts = true;
  t.moe.normalise_top_k = kAlways;  // whatever norm_topk_prob says (modeling_qwen3_vl_moe.py, the router)
  return t;
}

/// The norms of queries and keys are as wide as the model, whatever the heads are.
void olmoe_heads(const Fields& fields, const Traits&, std::int64_t, Layer& layer) {
  const std::int64_t hidden = fields.integer("hidden_size", kHiddenLimits);
  if (layer.mixer.q_width() != hidden)
    fields.refuse("head_dim", fmt::format("{} in all heads together", hidden), "transformers' norms of queries take no other");
}

constexpr Traits kOlmoe{
    .family = "olmoe",
    .q_bias = by("attention_bias"),
    .kv_bias = by("attention_bias"),
    .out_bias = by("attention_bias"),
    .qk_norm = QkNorm::full,
    .moe = {.width = "intermediate_size"},
    .is_moe = true,
    .adjust = olmoe_heads,
};

void phimoe_noise(const Fields& fields, const Traits&, std::int64_t, Layer& layer) {
  layer.feed_forward.input_jitter = fields.number_or("input_jitter_noise", 0, 0, 1) > 0;
}

constexpr Traits kPhiMoe{
    .family = "phimoe",
    .kv_heads_otherwise = 8,
    .q_bias = by("attention_bias"),
    .kv_bias = by("attention_bias"),
    .out_bias = by("attention_bias"),
    .head_bias = by("lm_head_bias"),
    .norm = NormKind::layer,
    .span = SpanRule::window,
    .moe = {.width = "intermediate_size"},
    .is_moe = true,
    .adjust = phimoe_noise,
};

constexpr Traits kGraniteMoe{
    .family = "granitemoe",
    .q_bias = by("attention_bias"),
    .kv_bias = by("attention_bias"),
    .out_bias = by("attention_bias"),
    .moe = {.width = "intermediate_size", .fused_experts = true, .score = RouterScore::softmax_of_top_k},
    .is_moe = true,
};

constexpr Traits kGptOss{
    .family = "gpt_oss",
    .kv_heads_otherwise = 8,
    .head_dim_otherwise = 64,
    .q_bias = by("attention_bias", true),
    .kv_bias = by("attention_bias", true),
    .out_bias = by("attention_bias", true),
    .sinks = true,
    .span = SpanRule::every_nth_full,
    .span_period = 2,
    .window_otherwise = 128,
    .moe = {.width = "intermediate_size",
            .router_bias = true,
            .expert_bias = true,
            .fused_experts = true,
            .score = RouterScore::softmax_of_top_k},
    .is_moe = true,
};

constexpr Traits kMiniMaxM2{
    .family = "minimax_m2",
    .kv_heads_otherwise = 8,
    .head_dim_otherwise = 128,
    .qk_norm = QkNorm::full,
    .qk_norm_present = by("use_qk_norm", true),
    .moe = {.width = "intermediate_size",
            .correction_bias = by("use_routing_bias", true),
            .score = RouterScore::sigmoid,
            .weights_in_fp32 = true},
    .is_moe = true,
};

constexpr Traits kDeepSeekMoe{
    .family = "deepseek",
    .q_bias = by("attention_bias"),
    .kv_bias = by("attention_bias"),
    .out_bias = by("attention_bias"),
    .moe = {.layers = MoeLayers::after_first_k, .shared_count = "n_shared_experts"},
    .is_moe = true,
};

constexpr Traits kDots{
    .family = "dots1",
    .q_bias = by("attention_bias"),
    .kv_bias = by("attention_bias"),
    .out_bias = by("attention_bias"),
    .qk_norm = QkNorm::head,
    .moe = {.layers = MoeLayers::after_first_k,
            .shared_count = "n_shared_experts",
            .correction_bias = kAlways,
            .score = RouterScore::sigmoid,
            .router_in_fp32 = true,
            .weights_in_fp32 = true,
            .groups_otherwise = 1,
            .top_groups_otherwise = 1},
    .is_moe = true,
};

constexpr Traits kGlm4Moe{
    .family = "glm4_moe",
    .kv_heads_otherwise = 8,
    .q_bias = by("attention_bias"),
    .kv_bias = by("attention_bias"),
    .qk_norm = QkNorm::head,
    .qk_norm_present = by("use_qk_norm"),
    .rotary_fraction = 0.5,
    .moe = {.layers = MoeLayers::after_first_k,
            .shared_count = "n_shared_experts",
            .shared_otherwise = 1,
            .correction_bias = kAlways,
            .score = RouterScore::sigmoid,
            .router_in_fp32 = true,
            .weights_in_fp32 = true,
            .groups_otherwise = 1,
            .top_groups_otherwise = 1},
    .is_moe = true,
    .finish = read_deepseek_mtp_once,
};

constexpr Traits kLing{
    .family = "bailing_moe",
    .q_bias = by("use_qkv_bias"),
    .kv_bias = by("use_qkv_bias"),
    .out_bias = by("use_bias"),
    .qk_norm = QkNorm::head,
    .qk_norm_present = by("use_qk_norm"),
    .fused_qkv = true,
    .moe = {.layers = MoeLayers::after_first_k,
            .shared_count = "num_shared_experts",
            .correction_bias = by("moe_router_enable_expert_bias"),
            .score = RouterScore::sigmoid,
            .router_in_fp32 = true},
    .is_moe = true,
};

/// The MTP layer of ERNIE 4.5 is dense: 2h -> h, one layer, two norms beside the layer's own.
void ernie_mtp(const Fields& fields, const Traits& traits, Architecture& out) {
  const std::int64_t count = fields.integer_or("num_nextn_predict_layers", 0, kFewLimits);
  if (count == 0) return;
  Layer layer = out.runs.back().layer;
  layer.feed_forward = dense_feed_forward(fields, traits);
  out.mtp.layers = {{layer, count}};
  out.mtp.projections = count;
  out.mtp.norms = 2 * count;
}

constexpr Traits kErnieMoe{
    .family = "ernie4_5_moe",
    .kv_heads_otherwise = 4,
    .tied = by("tie_word_embeddings", true),
    .q_bias = by("use_bias"),
    .kv_bias = by("use_bias"),
    .out_bias = by("use_bias"),
    .mlp_bias = by("use_bias"),
    .head_bias = by("use_bias"),
    .moe = {.layers = MoeLayers::range,
            .shared_count = "moe_num_shared_experts",
            .correction_bias = kAlways,
            .router_in_fp32 = true},
    .is_moe = true,
    .finish = ernie_mtp,
};

void hunyuan_moe_heads(const Fields& fields, const Traits&, std::int64_t, Layer&) {
  if (fields.has_class() && !fields.has("head_dim"))
    fields.refuse("head_dim", "an integer", "the class in transformers needs it");
}

constexpr Traits kHunYuanMoe{
    .family = "hunyuan_v1_moe",
    .q_bias = by("attention_bias"),
    .kv_bias = by("attention_bias"),
    .out_bias = by("attention_bias"),
    .mlp_bias = by("mlp_bias"),
    .qk_norm = QkNorm::head,
    .qk_norm_present = by("use_qk_norm", true),
    .moe = {.per_token = "moe_topk|num_experts_per_tok",
            .width = "intermediate_size",  // of the experts and of the shared one, whatever else the file says
            .shared_width = "intermediate_size",
            .router_in_fp32 = true},
    .is_moe = true,
    .adjust = hunyuan_moe_heads,
};

// Llama 4: every interleave_moe_layer_step-th layer is MoE; three of four layers have rotary positions and attend to a chunk.
FeedForward llama4_feed_forward(const Fields& fields, const Traits& traits, std::int64_t layer) {
  const std::int64_t step = fields.integer_or("interleave_moe_layer_step", 1, kLayerLimits);
  return (layer + 1) % step == 0 ? moe_feed_forward(fields, traits) : dense_feed_forward(fields, traits);
}

void llama4_positions(const Fields& fields, const Traits&, std::int64_t i, Layer& layer) {
  bool rotary = (i + 1) % 4 != 0;
  if (fields.is_list("no_rope_layers")) {
    const auto listed = fields.integers("no_rope_layers", {0, 1});
    if (!listed.empty()) {
      if (i >= static_cast<std::int64_t>(listed.size())) fields.refuse("no_rope_layers", "an entry for each layer");
      rotary = listed[static_cast<std::size_t>(i)] != 0;
    }
  }
  Mixer& mixer = layer.mixer;
  if (!rotary) mixer.rotary_dim = 0;
  if (!rotary || fields.has("layer_types")) return;
  mixer.span = AttentionSpan::chunked;
  mixer.window = fields.integer_or("attention_chunk_size", 8192, kPositionLimits);
}

constexpr Traits kLlama4{
    .family = "llama4_text",
    .width = "intermediate_size_mlp",
    .kv_heads_otherwise = 8,
    .head_dim_otherwise = 128,
    .q_bias = by("attention_bias"),
    .kv_bias = by("attention_bias"),
    .out_bias = by("attention_bias"),
    .qk_norm = QkNorm::unweighted,
    .qk_norm_present = by("use_qk_norm", true),
    .moe = {.width = "intermediate_size",
            .shared_width = "intermediate_size",
            .fused_experts = true,
            .score = RouterScore::sigmoid},
    .is_moe = true,
    .feed_forward = llama4_feed_forward,
    .adjust = llama4_positions,
};

// DBRX nests its sizes in attn_config and ffn_config; flattened copies of the config exist.
Fields nested(const Fields& fields, std::string_view key) {
  const auto inner = fields.object_if(key);
  return inner ? *inner : fields;
}

Mixer dbrx_mixer(const Fields& fields, const Traits& traits, std::int64_t layer) {
  Mixer mixer = attention_mixer(fields, traits, layer);
  mixer.kv_heads = nested(fields, "attn_config").integer("kv_n_heads", {1, mixer.heads});
  if (mixer.heads % mixer.kv_heads != 0) fields.refuse("n_heads", "a multiple of kv_n_heads");
  return mixer;
}

FeedForward dbrx_feed_forward(const Fields& fields, const Traits& traits, std::int64_t) {
  return moe_feed_forward(nested(fields, "ffn_config"), traits);
}

constexpr Traits kDbrx{
    .family = "dbrx",
    .hidden = "d_model|hidden_size",
    .layers = "n_layers|num_hidden_layers",
    .heads = "n_heads|num_attention_heads",
    .kv_heads = "",
    .head_dim = "",
    .positions = "max_seq_len",
    .activation = "",
    .norm = NormKind::layer_no_bias,
    .fused_qkv = true,
    .moe = {.width = "ffn_hidden_size", .fused_experts = true},
    .is_moe = true,
    .mixer = dbrx_mixer,
    .feed_forward = dbrx_feed_forward,
};

/// transformers derives what windowed layers have and passes over the keys that vLLM and SGLang read: both have to say the same.
void same_in_transformers(const Fields& fields, const Mixer& m, std::int64_t heads, std::int64_t kv_heads, bool windowed) {
  if (!fields.has_class()) return;
  const auto same = [&](const char* key, std::int64_t found, std::int64_t wanted) {
    if (found != wanted) fields.refuse(key, fmt::format("{}", wanted), "the class in transformers passes over the key");
  };
  same("swa_num_attention_heads", m.heads, heads);
  same("swa_num_key_value_heads", m.kv_heads, windowed ? 2 * kv_heads : kv_heads);
  same("swa_head_dim", m.head_dim, fields.integer("head_dim", kHeadDimLimits));
  same("swa_v_head_dim", m.value_head_dim, fields.integer("v_head_dim", kHeadDimLimits));
  if (m.sinks != windowed)
    fields.refuse(windowed ? "add_swa_attention_sink_bias" : "add_full_attention_sink_bias", windowed ? "true" : "false",
                  "the class in transformers passes over the key");
}

// MiMo-V2-Flash: hybrid_layer_pattern tells windowed layers (1), which have head counts and sinks of their own.
Mixer mimo_mixer(const Fields& fields, const Traits& traits, std::int64_t layer) {
  Mixer mixer = attention_mixer(fields, traits, layer);
  const std::int64_t heads = mixer.heads, kv_heads = mixer.kv_heads;
  bool windowed = mixer.span == AttentionSpan::sliding;  // by layer_types, as transformers 5 writes it
  if (fields.has("hybrid_layer_pattern") || !fields.has("layer_types")) {
    const auto pattern = fields.integers("hybrid_layer_pattern", {0, 1});
    if (layer >= static_cast<std::int64_t>(pattern.size())) fields.refuse("hybrid_layer_pattern", "an entry for each layer");
    windowed = pattern[static_cast<std::size_t>(layer)] == 1;
  }
  if (windowed) {
    mixer.heads = fields.integer_or("swa_num_attention_heads", mixer.heads, kHeadLimits);
    mixer.kv_heads = fields.integer_or("swa_num_key_value_heads", 2 * mixer.kv_heads, {1, mixer.heads});
    mixer.head_dim = fields.integer_or("swa_head_dim", mixer.head_dim, kHeadDimLimits);
    mixer.span = AttentionSpan::sliding;
    mixer.window = fields.integer(present_key(fields, "sliding_window|sliding_window_size"), kPositionLimits);
  }
  mixer.value_head_dim = fields.integer_or(windowed && fields.has("swa_v_head_dim") ? "swa_v_head_dim" : "v_head_dim",
                                           mixer.head_dim, kHeadDimLimits);
  mixer.rotary_dim = read_rotary_dim(fields, traits, mixer.head_dim);
  mixer.sinks = fields.flag_or(windowed ? "add_swa_attention_sink_bias" : "add_full_attention_sink_bias", windowed);
  same_in_transformers(fields, mixer, heads, kv_heads, windowed);
  return mixer;
}

constexpr Traits kMiMoV2{
    .family = "mimo_v2_flash",
    .q_bias = by("attention_bias"),
    .kv_bias = by("attention_bias"),
    .moe = {.layers = MoeLayers::list,
            .shared_count = "n_shared_experts",
            .correction_bias = kAlways,
            .score = RouterScore::sigmoid,
            .router_in_fp32 = true,
            .groups_otherwise = 1,
            .top_groups_otherwise = 1},
    .is_moe = true,
    .mixer = mimo_mixer,
};

// MiniMax-M1: attn_type_list tells lightning attention (0) from softmax attention (1).
Mixer minimax_m1_mixer(const Fields& fields, const Traits& traits, std::int64_t layer) {
  Mixer mixer = attention_mixer(fields, traits, layer);
  const auto types = fields.integers("attn_type_list", {0, 1});
  if (layer >= static_cast<std::int64_t>(types.size())) fields.refuse("attn_type_list", "an entry for each layer");
  if (types[static_cast<std::size_t>(layer)] == 1) return mixer;
  Mixer lightning;
  lightning.kind = MixerKind::lightning;
  lightning.heads = lightning.kv_heads = mixer.heads;
  lightning.head_dim = lightning.value_head_dim = mixer.head_dim;
  return lightning;
}

constexpr Traits kMiniMaxM1{
    .family = "minimax_m1",
    .kv_heads_otherwise = 8,
    .moe = {.width = "intermediate_size", .shared_width = "shared_intermediate_size", .weights_in_fp32 = true},
    .is_moe = true,
    .mixer = minimax_m1_mixer,
};

// MiniMax-M3: an indexer picks blocks of keys on the layers of sparse_attention_freq.
void minimax_m3_indexer(const Fields& fields, const Traits&, std::int64_t i, Layer& layer) {
  if (fields.flag_or("use_gemma_norm", true)) layer.norm = NormKind::rms_plus_one;
  if (fields.flag_or("attention_output_gate", false))
    fields.refuse("attention_output_gate", "false", "its shape is not described");
  const auto sparse = fields.object_if("sparse_attention_config");
  if (!sparse || !sparse->flag_or("use_sparse_attention", true)) return;
  const auto frequency = sparse->integers("sparse_attention_freq", {0, 1});
  if (i >= static_cast<std::int64_t>(frequency.size())) sparse->refuse("sparse_attention_freq", "an entry for each layer");
  if (frequency[static_cast<std::size_t>(i)] == 0) return;
  layer.mixer.index_heads = sparse->integer("sparse_num_index_heads", kHeadLimits);
  layer.mixer.index_head_dim = sparse->integer("sparse_index_dim", kHeadDimLimits);
}

void minimax_m3_norm(const Fields&, const Traits&, Architecture& out) { out.final_norm = out.runs.front().layer.norm; }

constexpr Traits kMiniMaxM3{
    .family = "minimax_m3",
    .width = "dense_intermediate_size",
    .kv_heads_otherwise = 4,
    .head_dim_otherwise = 128,
    .qk_norm = QkNorm::head,
    .qk_norm_present = by("use_qk_norm", true),
    .moe = {.layers = MoeLayers::list,
            .width = "moe_intermediate_size|intermediate_size",
            .shared_width = "shared_intermediate_size",
            .correction_bias = by("use_routing_bias", true),
            .score = RouterScore::sigmoid},
    .is_moe = true,
    .adjust = minimax_m3_indexer,
    .finish = minimax_m3_norm,
};

// Step-3: one k/v head, the query passes through a shared projection of share_q_dim; moe_layers lists the MoE layers.
Mixer step3_mixer(const Fields& fields, const Traits& traits, std::int64_t layer) {
  Mixer mixer = attention_mixer(fields, traits, layer);
  mixer.query_group_width = fields.integer("share_q_dim", kWidthLimits);
  return mixer;
}

FeedForward step3_feed_forward(const Fields& fields, const Traits& traits, std::int64_t layer) {
  const auto layers = fields.integers(present_key(fields, "moe_layers"), kFewLimits);
  const bool moe = std::find(layers.begin(), layers.end(), layer) != layers.end();
  return moe ? moe_feed_forward(fields, traits) : dense_feed_forward(fields, traits);
}

constexpr Traits kStep3{
    .family = "step3_text",
    .kv_heads = "num_attention_groups",
    .positions = "max_position_embedding|max_position_embeddings",
    .moe = {.shared_width = "share_expert_dim"},
    .is_moe = true,
    .mixer = step3_mixer,
    .feed_forward = step3_feed_forward,
};

// Step-3.7: a gate for each head; windowed layers may have a head count of their own.
void step37_layer(const Fields& fields, const Traits&, std::int64_t, Layer& layer) {
  layer.mixer.head_gate = true;
  if (layer.mixer.span != AttentionSpan::sliding) return;
  std::int64_t heads = fields.integer_or("num_sliding_attention_heads", layer.mixer.heads, kHeadLimits);
  if (const auto other = fields.object_if("attention_other_setting"))
    heads = other->integer_or("num_attention_heads", heads, kHeadLimits);
  layer.mixer.heads = heads;
}

constexpr Traits kStep37{
    .family = "step3p7",
    .kv_heads = "num_key_value_heads|num_attention_groups",
    .kv_heads_otherwise = 8,
    .head_dim_otherwise = 128,
    .qk_norm = QkNorm::head,
    .moe = {.layers = MoeLayers::after_first_k,
            .shared_width = "share_expert_dim|share_expert_dims",
            .correction_bias = by("use_moe_router_bias", true),
            .score = RouterScore::sigmoid},
    .is_moe = true,
    .adjust = step37_layer,
};

constexpr Family kMoeFamilies[] = {
    {"mixtral", "", kMixtral},       {"mixtral", "Grok1ModelForCausalLM", grok()},
    {"grok-1", "", grok()},          {"qwen2_moe", "", kQwen2Moe},
    {"qwen3_moe", "", kQwen3Moe},    {"qwen3_vl_moe_text", "", qwen3_vl_moe()},
    {"olmoe", "", kOlmoe},           {"phimoe", "", kPhiMoe},
    {"granitemoe", "", kGraniteMoe}, {"gpt_oss", "", kGptOss},
    {"minimax_m1", "", kMiniMaxM1},  {"minimax_m2", "", kMiniMaxM2},
    {"minimax_m3", "", kMiniMaxM3},  {"minimax_m3_vl_text", "", kMiniMaxM3},
    {"deepseek", "", kDeepSeekMoe},  {"dots1", "", kDots},
    {"glm4_moe", "", kGlm4Moe},      {"glm", "Glm4MoeForCausalLM", kGlm4Moe},
    {"bailing_moe", "", kLing},      {"bailing_moe_v2", "", kLing},
    {"ernie4_5_moe", "", kErnieMoe}, {"hunyuan_v1_moe", "", kHunYuanMoe},
    {"llama4_text", "", kLlama4},    {"dbrx", "", kDbrx},
    {"mimo_v2_flash", "", kMiMoV2},  {"step3_text", "", kStep3},
    {"step3p5", "", kStep37},
};

}  // namespace

std::span<const Family> moe_families() { return kMoeFamilies; }

}  // namespace oomplan
