// Dense decoders of Llama's shape: RMSNorm or LayerNorm, separate or fused q/k/v, gated feed-forward.
// Biases, norms and defaults: transformers 5.23, models/<family>/{configuration,modeling}_<family>.py; where a family's code
// ships with its checkpoint instead (Baichuan, InternLM, Orion, Qwen 1, ChatGLM, MiMo, openPangu, Phi-3-small), the checkpoint's
// modeling file.
#include <fmt/format.h>

#include "catalog/families/traits.hpp"

namespace oomplan {
namespace {

constexpr Traits kLlama{
    .family = "llama",
    .q_bias = by("attention_bias|attention_qkv_bias"),
    .kv_bias = by("attention_bias|attention_qkv_bias"),
    .out_bias = by("attention_bias"),
    .mlp_bias = by("mlp_bias"),
};

constexpr Traits kMistral{.family = "mistral", .kv_heads_otherwise = 8, .span = SpanRule::window};

constexpr Traits kQwen2{
    .family = "qwen2", .kv_heads_otherwise = 32, .q_bias = kAlways, .kv_bias = kAlways, .span = SpanRule::qwen};

constexpr Traits kQwen3{
    .family = "qwen3",
    .kv_heads_otherwise = 32,
    .head_dim_otherwise = 128,
    .q_bias = by("attention_bias"),
    .kv_bias = by("attention_bias"),
    .out_bias = by("attention_bias"),
    .qk_norm = QkNorm::head,
    .span = SpanRule::qwen,
};

constexpr Traits kSeedOss{
    .family = "seed_oss",
    .kv_heads_otherwise = 8,
    .head_dim_otherwise = 128,
    .q_bias = by("attention_bias", true),
    .kv_bias = by("attention_bias", true),
    .out_bias = by("attention_out_bias"),
    .mlp_bias = by("mlp_bias"),
    .hidden_dropout_otherwise = 0.1,
    .attention_dropout_otherwise = 0.1,
};

constexpr Traits kPhi3{
    .family = "phi3",
    .head_bias = by("lm_head_bias"),
    .fused_qkv = true,
    .fused_gate_up = true,
    .span = SpanRule::window,
};

/// Phi-3-small: LayerNorm, biases everywhere, GeGLU.
constexpr Traits kPhi3Small{
    .family = "phi3small",
    .kv_heads_otherwise = 8,
    .tied = by("tie_word_embeddings", true),
    .q_bias = kAlways,
    .kv_bias = kAlways,
    .out_bias = kAlways,
    .mlp_bias = kAlways,
    .norm = NormKind::layer,
    .fused_qkv = true,
    .fused_gate_up = true,
    .activation_otherwise = "gegelu",
};

constexpr Traits kGlm{
    .family = "glm",
    .kv_heads_otherwise = 2,
    .head_dim_otherwise = 128,
    .q_bias = by("attention_bias", true),
    .kv_bias = by("attention_bias", true),
    .fused_gate_up = true,
    .rotary_fraction = 0.5,
};

constexpr Traits glm4() {
  Traits t = kGlm;
  t.family = "glm4";
  t.norm_place = NormPlace::pre_and_post;
  return t;
}

constexpr Traits kChatGlm{
    .family = "chatglm",
    .layers = "num_layers|num_hidden_layers",
    .kv_heads = "multi_query_group_num",
    .head_dim = "kv_channels",
    .width = "ffn_hidden_size",
    .positions = "seq_length",
    .vocab = "padded_vocab_size",
    .q_bias = by("add_qkv_bias|add_bias_linear"),
    .kv_bias = by("add_qkv_bias|add_bias_linear"),
    .out_bias = by("add_bias_linear"),
    .mlp_bias = by("add_bias_linear"),
    .fused_qkv = true,
    .fused_gate_up = true,
    .rotary_fraction = 0.5,
};

/// Without multi_query_attention there are as many k/v heads as heads, whatever multi_query_group_num says.
void chatglm_heads(const Fields& fields, const Traits&, std::int64_t, Layer& layer) {
  if (!fields.flag_or("multi_query_attention", false)) layer.mixer.kv_heads = layer.mixer.heads;
}

constexpr Traits chatglm() {
  Traits t = kChatGlm;
  t.adjust = chatglm_heads;
  return t;
}

/// Every `no_rope_layer_interval`-th layer has no rotary positions.
void smollm3_positions(const Fields& fields, const Traits&, std::int64_t i, Layer& layer) {
  const std::int64_t interval = fields.integer_or("no_rope_layer_interval", 4, kLayerLimits);
  if ((i + 1) % interval == 0) layer.mixer.rotary_dim = 0;
}

constexpr Traits smollm3() {
  Traits t = kLlama;
  t.family = "smollm3";
  t.kv_heads_otherwise = 4;
  t.tied = by("tie_word_embeddings", true);
  t.span = SpanRule::qwen;
  t.adjust = smollm3_positions;
  return t;
}

constexpr Traits granite() {
  Traits t = kLlama;
  t.family = "granite";
  return t;
}

constexpr Traits kOlmo{
    .family = "olmo",
    .q_bias = by("attention_bias|attention_qkv_bias"),
    .kv_bias = by("attention_bias|attention_qkv_bias"),
    .out_bias = by("attention_bias"),
    .norm = NormKind::non_parametric,
};

constexpr Traits olmo2() {
  Traits t = kOlmo;
  t.family = "olmo2";
  t.norm = NormKind::rms;
  t.norm_place = NormPlace::post;
  t.qk_norm = QkNorm::full;
  return t;
}

constexpr Traits olmo3() {
  Traits t = olmo2();
  t.family = "olmo3";
  t.span = SpanRule::every_nth_full;
  t.span_period = 4;
  t.window_otherwise = 4096;
  return t;
}

constexpr Traits kCohere{
    .family = "cohere",
    .tied = by("tie_word_embeddings", true),
    .q_bias = by("attention_bias"),
    .kv_bias = by("attention_bias"),
    .out_bias = by("attention_bias"),
    .qk_norm = QkNorm::full,
    .qk_norm_present = by("use_qk_norm"),
    .norm = NormKind::layer_no_bias,
    .norm_place = NormPlace::parallel_one,
};

/// Full layers have no positions.
void cohere2_positions(const Fields&, const Traits&, std::int64_t, Layer& layer) {
  if (layer.mixer.span == AttentionSpan::full) layer.mixer.rotary_dim = 0;
}

constexpr Traits cohere2() {
  Traits t = kCohere;
  t.family = "cohere2";
  t.adjust = cohere2_positions;
  t.qk_norm = QkNorm::none;
  t.span = SpanRule::every_nth_full;
  t.span_period = 4;
  t.window_otherwise = 4096;
  return t;
}

constexpr Traits kStableLm{
    .family = "stablelm",
    .head_dim = "",
    .q_bias = by("use_qkv_bias"),
    .kv_bias = by("use_qkv_bias"),
    .norm = NormKind::layer,
    .rotary_fraction = 0.25,
};

void stablelm_layer(const Fields& fields, const Traits&, std::int64_t, Layer& layer) {
  if (fields.flag_or("qk_layernorm", false)) fields.refuse("qk_layernorm", "false", "one norm for each head is not described");
  if (fields.flag_or("use_parallel_residual", false)) layer.norm_place = NormPlace::parallel_one;
}

constexpr Traits stablelm() {
  Traits t = kStableLm;
  t.adjust = stablelm_layer;
  return t;
}

constexpr Traits kOrion{.family = "orion", .norm = NormKind::layer};
constexpr Traits kMiniCpm{.family = "minicpm", .tied = by("tie_word_embeddings", true)};
constexpr Traits kInternLm{
    .family = "internlm", .q_bias = by("bias", true), .kv_bias = by("bias", true), .out_bias = by("bias", true)};
constexpr Traits kInternLm2{
    .family = "internlm2", .q_bias = by("bias"), .kv_bias = by("bias"), .out_bias = by("bias"), .fused_qkv = true};
/// transformers reads it with Llama's code, which has one answer for both.
void internlm3_biases(const Fields& fields, const Traits& traits, std::int64_t, Layer&) {
  if (fields.has_class() && chosen(fields, traits.q_bias) != chosen(fields, traits.mlp_bias))
    fields.refuse("qkv_bias", "the same as bias", "transformers refuses another");
}
constexpr Traits kInternLm3{.family = "internlm3",
                            .kv_heads_otherwise = 2,
                            .head_dim_otherwise = 128,
                            .q_bias = by("qkv_bias"),
                            .kv_bias = by("qkv_bias"),
                            .out_bias = by("bias"),
                            .mlp_bias = by("bias"),
                            .adjust = internlm3_biases};
constexpr Traits kPangu{.family = "pangu", .q_bias = by("bias", true), .kv_bias = by("bias", true), .out_bias = by("bias", true)};
constexpr Traits kErnie{.family = "ernie4_5",
                        .kv_heads_otherwise = 2,
                        .head_dim_otherwise = 128,
                        .tied = by("tie_word_embeddings", true),
                        .q_bias = by("use_bias"),
                        .kv_bias = by("use_bias"),
                        .out_bias = by("use_bias"),
                        .mlp_bias = by("use_bias")};
void hunyuan_heads(const Fields& fields, const Traits&, std::int64_t, Layer&) {
  if (fields.has_class() && !fields.has("head_dim"))
    fields.refuse("head_dim", "an integer", "the class in transformers needs it");
}
constexpr Traits kHunYuan{.family = "hunyuan_v1_dense",
                          .q_bias = by("attention_bias"),
                          .kv_bias = by("attention_bias"),
                          .out_bias = by("attention_bias"),
                          .mlp_bias = by("mlp_bias"),
                          .qk_norm = QkNorm::head,
                          .qk_norm_present = by("use_qk_norm", true),
                          .adjust = hunyuan_heads};
constexpr Traits kQwen1{.family = "qwen",
                        .head_dim = "kv_channels",
                        .positions = "seq_length|max_position_embeddings",
                        .width_divisor = 2,
                        .q_bias = kAlways,
                        .kv_bias = kAlways,
                        .fused_qkv = true};

/// Baichuan 13B has ALiBi in place of rotary positions: its code tells the two sizes apart, the config does not say it.
void baichuan_positions(const Fields& fields, const Traits& traits, std::int64_t, Layer& layer) {
  if (read_hidden(fields, traits) == 5120) layer.mixer.rotary_dim = 0;
}
constexpr Traits kBaichuan{.family = "baichuan", .fused_qkv = true, .adjust = baichuan_positions};

/// One multi-token-prediction layer: a projection 2h -> h, a layer like the others, three norms.
void mimo_mtp(const Fields& fields, const Traits&, Architecture& out) {
  const std::int64_t count = fields.integer_or("num_nextn_predict_layers", 0, kFewLimits);
  if (count == 0) return;
  out.mtp.layers = {{out.runs.back().layer, count}};
  out.mtp.projections = count;
  out.mtp.norms = 3 * count;
}
constexpr Traits kMiMo{
    .family = "qwen2", .q_bias = by("attention_bias", true), .kv_bias = by("attention_bias", true), .finish = mimo_mtp};

/// DeciLM: every layer states its own attention and feed-forward, either of which may be absent or one h x h matrix.
std::int64_t nas_width(double multiplier, std::int64_t hidden) {
  const auto wanted = static_cast<std::int64_t>(2 * multiplier * static_cast<double>(hidden) / 3);
  return round_up(wanted, 256);
}

Fields nas_block(const Fields& fields, const Traits& traits, std::int64_t layer, std::string_view half) {
  const auto blocks = fields.objects("block_configs");
  const std::int64_t layers = read_layers(fields, traits);
  if (static_cast<std::int64_t>(blocks.size()) != layers)
    fields.refuse("block_configs", fmt::format("{} blocks, one for each layer", layers));
  return blocks[static_cast<std::size_t>(layer)].object(half);
}

Mixer nas_mixer(const Fields& fields, const Traits& traits, std::int64_t layer) {
  const Fields block = nas_block(fields, traits, layer, "attention");
  Mixer mixer;
  if (block.flag_or("no_op", false)) return mixer;
  if (block.flag_or("replace_with_linear", false)) {
    mixer.kind = MixerKind::linear;
    return mixer;
  }
  mixer = attention_mixer(fields, traits, layer);
  const std::int64_t group = block.integer("n_heads_in_group", {1, mixer.heads});
  if (mixer.heads % group != 0) block.refuse("n_heads_in_group", fmt::format("a divisor of {} (the heads)", mixer.heads));
  mixer.kv_heads = mixer.heads / group;
  return mixer;
}

FeedForward nas_feed_forward(const Fields& fields, const Traits& traits, std::int64_t layer) {
  const Fields block = nas_block(fields, traits, layer, "ffn");
  FeedForward out;
  if (block.flag_or("no_op", false)) return out;
  if (block.flag_or("replace_with_linear", false)) {
    out.kind = FeedForwardKind::linear;
    return out;
  }
  out.kind = FeedForwardKind::gated;
  out.width = nas_width(block.number("ffn_mult", 0.001, 64), read_hidden(fields, traits));
  return out;
}

constexpr Traits nas() {
  Traits t = kLlama;
  t.family = "nemotron-nas";
  t.mixer = nas_mixer;
  t.feed_forward = nas_feed_forward;
  return t;
}

constexpr Traits qwen2_vl_text() {
  Traits t = kQwen2;
  t.kv_heads_otherwise = 8;
  t.head_dim = "";  // hidden / heads, whatever the file says
  return t;
}

constexpr Traits mistral_without_window(std::string_view family) {
  Traits t = kMistral;
  t.family = family;
  return t;
}

constexpr Family kLlamaLikeFamilies[] = {
    {"llama", "", kLlama},
    {"mistral", "", kMistral},
    {"ministral3", "", mistral_without_window("ministral3")},
    {"qwen2", "", kQwen2},
    {"qwen2_vl_text", "", qwen2_vl_text()},
    {"qwen2_5_vl_text", "", qwen2_vl_text()},
    {"qwen3", "", kQwen3},
    {"qwen3_vl_text", "", kQwen3},
    {"seed_oss", "", kSeedOss},
    {"smollm3", "", smollm3()},
    {"granite", "", granite()},
    {"phi3", "", kPhi3},
    {"phi4", "Phi3ForCausalLM", kPhi3},
    {"phi3small", "", kPhi3Small},
    {"glm", "", kGlm},
    {"glm4", "", glm4()},
    {"chatglm", "", chatglm()},
    {"olmo", "", kOlmo},
    {"olmo2", "", olmo2()},
    {"olmo3", "", olmo3()},
    {"cohere", "", kCohere},
    {"cohere2", "", cohere2()},
    {"stablelm", "", stablelm()},
    {"orion", "", kOrion},
    {"minicpm", "", kMiniCpm},
    {"internlm", "", kInternLm},
    {"internlm2", "", kInternLm2},
    {"internlm3", "", kInternLm3},
    {"PanguEmbedded", "", kPangu},
    {"ernie4_5", "", kErnie},
    {"hunyuan_v1_dense", "", kHunYuan},
    {"qwen", "", kQwen1},
    {"baichuan", "", kBaichuan},
    {"mimo", "", kMiMo},
    {"nemotron-nas", "", nas()},
};

}  // namespace

std::span<const Family> llama_like_families() { return kLlamaLikeFamilies; }

}  // namespace oomplan
