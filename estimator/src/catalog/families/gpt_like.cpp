// Decoders of the GPT-2 generation: LayerNorm, plain feed-forward, learned, rotary or ALiBi positions.
// Biases, norms and defaults: transformers 5.23, models/<family>/{configuration,modeling}_<family>.py.
#include "catalog/families/traits.hpp"

namespace oomplan {
namespace {

constexpr Traits kGpt2{
    .family = "gpt2",
    .hidden = "n_embd|hidden_size",
    .layers = "n_layer|num_hidden_layers",
    .heads = "n_head|num_attention_heads",
    .kv_heads = "",
    .head_dim = "",
    .width = "n_inner",
    .positions = "n_positions|n_ctx",
    .activation = "activation_function",
    .width_factor = 4,
    .tied = by("tie_word_embeddings", true),
    .q_bias = kAlways,
    .kv_bias = kAlways,
    .out_bias = kAlways,
    .mlp_bias = kAlways,
    .norm = NormKind::layer,
    .gated = false,
    .fused_qkv = true,
    .activation_otherwise = "gelu_new",
    .rotary = false,
    .hidden_dropout_otherwise = 0.1,
    .attention_dropout_otherwise = 0.1,
    .embedding_dropout_otherwise = 0.1,
};

/// The position table: n_positions rows, 1024 unless stated.
void gpt2_positions(const Fields& fields, const Traits&, Architecture& out) {
  if (fields.flag_or("add_cross_attention", false))
    fields.refuse("add_cross_attention", "false", "attention to an encoder is not described");
  if (out.max_positions == 0) out.max_positions = 1024;
  out.position_rows = out.max_positions;
}

constexpr Traits gpt2() {
  Traits t = kGpt2;
  t.finish = gpt2_positions;
  return t;
}

/// StarCoder 1: all heads share one key and value head.
Mixer bigcode_mixer(const Fields& fields, const Traits& traits, std::int64_t layer) {
  Mixer mixer = attention_mixer(fields, traits, layer);
  if (fields.flag_or("multi_query", true)) mixer.kv_heads = 1;
  return mixer;
}

constexpr Traits gpt_bigcode() {
  Traits t = gpt2();
  t.family = "gpt_bigcode";
  t.activation_otherwise = "gelu_pytorch_tanh";
  t.mixer = bigcode_mixer;
  return t;
}

constexpr Traits kGptJ{
    .family = "gptj",
    .hidden = "n_embd|hidden_size",
    .layers = "n_layer|num_hidden_layers",
    .heads = "n_head|num_attention_heads",
    .kv_heads = "",
    .head_dim = "",
    .width = "n_inner",
    .positions = "n_positions",
    .activation = "activation_function",
    .width_factor = 4,
    .mlp_bias = kAlways,
    .head_bias = kAlways,
    .norm = NormKind::layer,
    .norm_place = NormPlace::parallel_one,
    .gated = false,
    .activation_otherwise = "gelu_new",
};

void neox_layer(const Fields& fields, const Traits&, std::int64_t, Layer& layer) {
  if (!fields.flag_or("use_parallel_residual", true)) layer.norm_place = NormPlace::pre;
}

/// hidden_dropout stands behind the embedding too.
void neox_dropout(const Fields&, const Traits&, Architecture& out) { out.embedding_dropout = out.hidden_dropout; }

constexpr Traits kNeoX{
    .family = "gpt_neox",
    .kv_heads = "",
    .head_dim = "",
    .q_bias = by("attention_bias", true),
    .kv_bias = by("attention_bias", true),
    .out_bias = by("attention_bias", true),
    .mlp_bias = kAlways,
    .norm = NormKind::layer,
    .norm_place = NormPlace::parallel_two,
    .gated = false,
    .fused_qkv = true,
    .activation_otherwise = "gelu",
    .rotary_fraction = 0.25,
    .adjust = neox_layer,
    .finish = neox_dropout,
};

/// The embedding may be narrower than the layers. OPT-350M norms behind the halves and has no final norm.
void opt_embedding(const Fields& fields, const Traits&, Architecture& out) {
  const std::int64_t width = fields.integer_or("word_embed_proj_dim", out.hidden, kHiddenLimits);
  if (width != out.hidden) out.embedding_width = width;
  const bool norm_before = fields.flag_or("do_layer_norm_before", true);
  if (!norm_before || fields.flag_or("_remove_final_layer_norm", false)) out.final_norm = NormKind::none;
  const bool weights = fields.flag_or("layer_norm_elementwise_affine", true);
  if (!weights && out.final_norm != NormKind::none) out.final_norm = NormKind::non_parametric;
  for (LayerRun& run : out.runs) {
    if (!norm_before) run.layer.norm_place = NormPlace::post;
    if (!weights) run.layer.norm = NormKind::non_parametric;
  }
}

constexpr Traits kOpt{
    .family = "opt",
    .kv_heads = "",
    .head_dim = "",
    .width = "ffn_dim",
    .activation = "activation_function",
    .hidden_dropout = "dropout",
    .tied = by("tie_word_embeddings", true),
    .q_bias = by("enable_bias", true),
    .kv_bias = by("enable_bias", true),
    .out_bias = by("enable_bias", true),
    .mlp_bias = by("enable_bias", true),
    .norm = NormKind::layer,
    .gated = false,
    .activation_otherwise = "relu",
    .rotary = false,
    .position_rows_extra = 2,
    .hidden_dropout_otherwise = 0.1,
    .finish = opt_embedding,
};

constexpr Traits kBloom{
    .family = "bloom",
    .hidden = "!n_embed|hidden_size",
    .layers = "n_layer|num_hidden_layers",
    .heads = "n_head|num_attention_heads",
    .kv_heads = "",
    .head_dim = "",
    .width = "",
    .positions = "seq_length",
    .activation = "",
    .width_factor = 4,
    .tied = by("tie_word_embeddings", true),
    .q_bias = kAlways,
    .kv_bias = kAlways,
    .out_bias = kAlways,
    .mlp_bias = kAlways,
    .norm = NormKind::layer,
    .gated = false,
    .fused_qkv = true,
    .activation_otherwise = "gelu_new",
    .rotary = false,
    .embedding_norm = true,
};

/// new_decoder_architecture decides how k/v heads are counted and how many norms a layer has.
void falcon_layer(const Fields& fields, const Traits&, std::int64_t, Layer& layer) {
  Mixer& mixer = layer.mixer;
  const bool grouped = fields.flag_or("new_decoder_architecture", false);
  const bool parallel = fields.flag_or("parallel_attn", true);
  mixer.fused_by_group = grouped;
  if (grouped) {
    mixer.kv_heads = fields.integer_or("num_kv_heads", mixer.heads, {1, mixer.heads});
    if (mixer.heads % mixer.kv_heads != 0) fields.refuse("num_kv_heads", "a divisor of the heads");
  } else {
    mixer.kv_heads = fields.flag_or("multi_query", true) ? 1 : mixer.heads;
  }
  if (fields.flag_or("alibi", false)) mixer.rotary_dim = 0;
  if (!grouped && fields.integer_or("num_ln_in_parallel_attn", 1, {1, 2}) == 2)
    fields.refuse("num_ln_in_parallel_attn", "1", "two norms go with new_decoder_architecture alone");
  const bool two = grouped && fields.integer_or("num_ln_in_parallel_attn", 2, {1, 2}) == 2;
  layer.norm_place = two ? NormPlace::parallel_two : (parallel || grouped ? NormPlace::parallel_one : NormPlace::pre);
}

constexpr Traits kFalcon{
    .family = "falcon",
    .hidden = "!n_embed|hidden_size",
    .layers = "num_hidden_layers|n_layer",
    .heads = "num_attention_heads|n_head",
    .kv_heads = "",
    .head_dim = "",
    .width = "ffn_hidden_size",
    .activation = "activation",
    .width_factor = 4,
    .tied = by("tie_word_embeddings", true),
    .q_bias = by("bias"),
    .kv_bias = by("bias"),
    .out_bias = by("bias"),
    .mlp_bias = by("bias"),
    .norm = NormKind::layer,
    .norm_place = NormPlace::parallel_one,
    .gated = false,
    .fused_qkv = true,
    .activation_otherwise = "gelu",
    .adjust = falcon_layer,
};

/// MPT without biases: norms have none either. ALiBi unless attn_config says otherwise.
void mpt_whole(const Fields& fields, const Traits&, Architecture& out) {
  if (!fields.flag_or("no_bias", true)) fields.refuse("no_bias", "true", "MPT checkpoints with biases are not described");
  const auto attention = fields.object_if("attn_config");
  const bool alibi = !attention || attention->flag_or("alibi", true);
  if (attention && attention->flag_or("qk_ln", false)) attention->refuse("qk_ln", "false", "is not described");
  if (!alibi) out.position_rows = out.max_positions;
  if (!attention) return;
  out.attention_dropout = attention->number_or("attn_pdrop", 0, 0, 1);
  const bool clips = !attention->is_null("clip_qkv") && attention->number_or("clip_qkv", 0, 0, 1e6) > 0;
  for (LayerRun& run : out.runs) run.layer.mixer.clip = clips;
}

constexpr Traits kMpt{
    .family = "mpt",
    .hidden = "d_model",
    .layers = "n_layers",
    .heads = "n_heads",
    .kv_heads = "",
    .head_dim = "",
    .width = "",
    .positions = "max_seq_len",
    .activation = "",
    .width_factor = 4,
    .tied = by("tie_word_embeddings", true),
    .norm = NormKind::layer_no_bias,
    .gated = false,
    .fused_qkv = true,
    .activation_otherwise = "gelu",
    .rotary = false,
    .finish = mpt_whole,
};

FeedForward mpt_feed_forward(const Fields& fields, const Traits& traits, std::int64_t) {
  FeedForward out = dense_feed_forward(fields, traits);
  out.width = fields.integer_or("expansion_ratio", 4, {1, 16}) * read_hidden(fields, traits);
  return out;
}

constexpr Traits mpt() {
  Traits t = kMpt;
  t.feed_forward = mpt_feed_forward;
  return t;
}

constexpr Traits kStarcoder2{
    .family = "starcoder2",
    .kv_heads_otherwise = 2,
    .tied = by("tie_word_embeddings", true),
    .q_bias = by("use_bias", true),
    .kv_bias = by("use_bias", true),
    .out_bias = by("use_bias", true),
    .mlp_bias = by("use_bias", true),
    .norm = NormKind::layer,
    .gated = false,
    .activation_otherwise = "gelu_pytorch_tanh",
    .span = SpanRule::window,
};

void phi_layer(const Fields& fields, const Traits&, std::int64_t, Layer&) {
  if (fields.flag_or("qk_layernorm", false)) fields.refuse("qk_layernorm", "false", "LayerNorm of q and k is not described");
}

constexpr Traits kPhi{
    .family = "phi",
    .q_bias = kAlways,
    .kv_bias = kAlways,
    .out_bias = kAlways,
    .mlp_bias = kAlways,
    .head_bias = kAlways,
    .norm = NormKind::layer,
    .norm_place = NormPlace::parallel_one,
    .gated = false,
    .activation_otherwise = "gelu_new",
    .rotary_fraction = 0.5,
    .adjust = phi_layer,
};

/// Megatron-LM's own GPT (megatron/training/arguments.py, 0.16.1) where nothing is asked for: LayerNorm, biases, GELU, a learned
/// table of positions, untied. No checkpoint of transformers is so: a config.json with these keys describes it, and with those of
/// Megatron's arguments what is asked for otherwise: position_embedding_type rope (rotary_percent), swiglu, squared_relu,
/// normalization RMSNorm, qk_layernorm. With num_experts, layers from first_k_dense_replace on have experts: moe_router_topk,
/// moe_ffn_hidden_size and so on under the names that other models have for them.
bool megatron_rotary_positions(const Fields& fields) {
  const std::string kind = fields.text_or("position_embedding_type", "learned_absolute");
  if (kind != "learned_absolute" && kind != "rope")
    fields.refuse("position_embedding_type", "learned_absolute or rope", "other positions of Megatron are not described");
  return kind == "rope";
}
NormKind megatron_norm(const Fields& fields) {
  const std::string kind = fields.text_or("normalization", "LayerNorm");
  if (kind != "LayerNorm" && kind != "RMSNorm")
    fields.refuse("normalization", "LayerNorm or RMSNorm", "other norms are not described");
  return kind == "RMSNorm" ? NormKind::rms : NormKind::layer;
}
void megatron_layer(const Fields& fields, const Traits&, std::int64_t, Layer& layer) {
  layer.norm = megatron_norm(fields);
  if (megatron_rotary_positions(fields))
    layer.mixer.rotary_dim =
        static_cast<std::int64_t>(static_cast<double>(layer.mixer.head_dim) * fields.number_or("rotary_percent", 1, 0.01, 1));
  if (fields.flag_or("qk_layernorm", false)) layer.mixer.qk_norm = QkNorm::head;
  if (fields.flag_or("squared_relu", false)) layer.feed_forward.activation = Activation::relu_squared;
  if (!fields.flag_or("swiglu", false) || layer.feed_forward.kind == FeedForwardKind::moe) return;
  layer.feed_forward.kind = FeedForwardKind::gated;
  layer.feed_forward.activation = Activation::silu;
}
FeedForward megatron_feed_forward(const Fields& fields, const Traits& traits, std::int64_t layer) {
  if (!fields.has("num_experts") || layer < fields.integer_or("first_k_dense_replace", 0, {0, kLayerLimits.most}))
    return dense_feed_forward(fields, traits);
  FeedForward out = moe_feed_forward(fields, traits);
  out.experts_gated = fields.flag_or("swiglu", false);
  out.expert_bias = out.bias;
  if (fields.text_or("moe_router_score_function", "softmax") == "sigmoid") out.score = RouterScore::sigmoid;
  return out;
}
void megatron_positions(const Fields& fields, const Traits&, Architecture& out) {
  out.final_norm = megatron_norm(fields);
  out.position_rows = megatron_rotary_positions(fields) ? 0 : out.max_positions;
}

constexpr Traits kMegatronGpt{
    .family = "megatron_gpt",
    .q_bias = by("add_bias_linear", true),
    .kv_bias = by("add_bias_linear", true),
    .out_bias = by("add_bias_linear", true),
    .mlp_bias = by("add_bias_linear", true),
    .norm = NormKind::layer,
    .gated = false,
    .fused_qkv = true,
    .activation_otherwise = "gelu",
    .rotary = false,
    .hidden_dropout_otherwise = 0.1,
    .attention_dropout_otherwise = 0.1,
    .moe = {.shared_width = "moe_shared_expert_intermediate_size", .correction_bias = by("moe_router_enable_expert_bias")},
    .feed_forward = megatron_feed_forward,
    .adjust = megatron_layer,
    .finish = megatron_positions,
};

constexpr Family kGptLikeFamilies[] = {
    {"gpt2", "", gpt2()},
    {"gpt_bigcode", "", gpt_bigcode()},
    {"gptj", "", kGptJ},
    {"gpt_neox", "", kNeoX},
    {"opt", "", kOpt},
    {"bloom", "", kBloom},
    {"falcon", "", kFalcon},
    {"mpt", "", mpt()},
    {"starcoder2", "", kStarcoder2},
    {"phi", "", kPhi},
    {"megatron_gpt", "", kMegatronGpt},
};

}  // namespace

std::span<const Family> gpt_like_families() { return kGptLikeFamilies; }

}  // namespace oomplan
