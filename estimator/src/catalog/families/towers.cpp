// Wrappers of a text decoder and a vision tower, and the readers of the towers' sizes.
// Keys and defaults: transformers 5.23, models/<family>/configuration_<family>.py; InternVL and Kimi: the checkpoint's own code.
#include "catalog/families/towers.hpp"

#include <algorithm>
#include <string>

#include "catalog/families/traits.hpp"

namespace oomplan {
namespace {

constexpr Limits kPatchLimits{1, 1024};

/// The keys that CLIP-like towers share.
Tower common_tower(const Fields& tower, const char* kind) {
  Tower out;
  out.kind = kind;
  out.layers = tower.integer("num_hidden_layers", kLayerLimits);
  out.hidden = tower.integer("hidden_size", kHiddenLimits);
  out.heads = tower.integer("num_attention_heads", kHeadLimits);
  out.width = tower.integer("intermediate_size", kWidthLimits);
  out.patch = tower.integer("patch_size", kPatchLimits);
  return out;
}

std::int64_t patches(const Fields& tower, std::int64_t patch) {
  const std::int64_t side = tower.integer("image_size", {1, 1 << 16}) / patch;
  return side * side;
}

Tower qwen_tower(const Fields& tower, const char* kind) {
  Tower out;
  out.kind = kind;
  out.layers = tower.integer("depth", kLayerLimits);
  out.hidden = tower.integer("hidden_size", kHiddenLimits);
  out.heads = tower.integer("num_heads", kHeadLimits);
  out.width = tower.integer("intermediate_size", kWidthLimits);
  out.patch = tower.integer(present_key(tower, "patch_size|spatial_patch_size"), kPatchLimits);
  out.temporal_patch = tower.integer_or("temporal_patch_size", 2, kPatchLimits);
  out.merge = tower.integer_or("spatial_merge_size", 2, {1, 16});
  out.out_hidden = tower.integer("out_hidden_size", kHiddenLimits);
  return out;
}

/// The older keys: embed_dim is the tower's width and hidden_size the language model's; the rest has defaults.
Tower qwen2_vl(const Fields& tower, const Fields&) {
  Tower out;
  out.kind = "qwen2_vl";
  out.layers = tower.integer_or("depth", 32, kLayerLimits);
  out.hidden = tower.integer_or("embed_dim", 1280, kHiddenLimits);
  out.heads = tower.integer_or("num_heads", 16, kHeadLimits);
  out.width = tower.integer_or("mlp_ratio", 4, {1, 64}) * out.hidden;
  out.patch = tower.integer_or("patch_size", 14, kPatchLimits);
  out.temporal_patch = tower.integer_or("temporal_patch_size", 2, kPatchLimits);
  out.merge = tower.integer_or("spatial_merge_size", 2, {1, 16});
  out.out_hidden = tower.integer_or("hidden_size", 3584, kHiddenLimits);
  return out;
}

Tower qwen2_5_vl(const Fields& tower, const Fields&) {
  Tower out = qwen_tower(tower, "qwen2_5_vl");
  out.window = tower.integer_or("window_size", 112, kHiddenLimits);
  if (tower.has("fullatt_block_indexes"))
    out.full_blocks = tower.integers("fullatt_block_indexes", kFewLimits);
  else
    out.full_blocks = {7, 15, 23, 31};
  return out;
}

Tower qwen3_vl(const Fields& tower, const Fields&) {
  Tower out = qwen_tower(tower, "qwen3_vl");
  out.positions = tower.integer_or("num_position_embeddings", 2304, kVocabLimits);
  if (tower.has("deepstack_visual_indexes")) out.deepstack_blocks = tower.integers("deepstack_visual_indexes", kFewLimits);
  out.deepstack = static_cast<std::int64_t>(out.deepstack_blocks.size());
  return out;
}

/// SigLIP as Gemma 3 has it: squares of patches are averaged until mm_tokens_per_image are left.
Tower siglip(const Fields& tower, const Fields& outer) {
  Tower out = common_tower(tower, "siglip");
  out.positions = patches(tower, out.patch);
  out.pooling_head = tower.flag_or("vision_use_head", false);
  if (outer.is_null("mm_tokens_per_image")) outer.refuse("mm_tokens_per_image", "an integer");
  const std::int64_t tokens = outer.integer_or("mm_tokens_per_image", 256, kVocabLimits);
  for (out.merge = 1; (out.merge + 1) * (out.merge + 1) * tokens <= out.positions;) ++out.merge;
  return out;
}

/// CLIP as LLaVA 1.5 has it: the output of the last block but one, without the class token.
Tower clip(const Fields& tower, const Fields& outer) {
  if (tower.text_or("model_type", "clip_vision_model") != "clip_vision_model")
    tower.refuse("model_type", "clip_vision_model", "LLaVA with another tower is not described");
  Tower out = common_tower(tower, "clip");
  if (tower.text_or("hidden_act", "quick_gelu") != "quick_gelu")
    tower.refuse("hidden_act", "quick_gelu", "a tower with another activation is not described");
  out.positions = patches(tower, out.patch) + 1;  // and the class token
  out.merge = 1;
  out.projector_bias = outer.flag_or("multimodal_projector_bias", true);
  if (outer.text_or("vision_feature_select_strategy", "default") != "default")
    outer.refuse("vision_feature_select_strategy", "default", "features of the class token are not described");
  if (outer.has("vision_feature_layer") && outer.integer("vision_feature_layer", {-1024, 1024}) != -2)
    outer.refuse("vision_feature_layer", "-2", "features of another block are not described");
  return out;
}

Tower pixtral(const Fields& tower, const Fields& outer) {
  Tower out = common_tower(tower, "pixtral");
  out.head_dim = tower.integer_or("head_dim", out.hidden / out.heads, kHeadDimLimits);
  out.merge = outer.integer_or("spatial_merge_size", 2, {1, 16});
  out.projector_bias = outer.flag_or("multimodal_projector_bias", false);
  if (outer.has("vision_feature_layer") && outer.integer("vision_feature_layer", {-1024, 1024}) != -1)
    outer.refuse("vision_feature_layer", "-1", "features of another block are not described");
  return out;
}

Tower llama4(const Fields& tower, const Fields&) {
  Tower out = common_tower(tower, "llama4");
  out.positions = patches(tower, out.patch) + 1;  // and the class token
  const double ratio = tower.number_or("pixel_shuffle_ratio", 0.5, 0.01, 1);
  out.merge = static_cast<std::int64_t>(1 / ratio + 0.5);
  out.projector_width = tower.integer("projector_input_dim", kWidthLimits);
  out.out_hidden = tower.integer("vision_output_dim", kWidthLimits);
  out.projector_bias = tower.flag_or("multi_modal_projector_bias", false);
  return out;
}

Tower internvit(const Fields& tower, const Fields& outer) {
  Tower out = common_tower(tower, "internvit");
  if (!tower.flag_or("qkv_bias", true)) tower.refuse("qkv_bias", "true", "a tower without it is not described");
  if (tower.flag_or("qk_normalization", false)) tower.refuse("qk_normalization", "false", "a tower with it is not described");
  out.positions = patches(tower, out.patch) + 1;
  const double ratio = outer.number_or("downsample_ratio", 0.5, 0.01, 1);
  out.merge = static_cast<std::int64_t>(1 / ratio + 0.5);
  return out;
}

/// A number, or two equal ones for both axes.
std::int64_t of_both_axes(const Fields& tower, const char* key, Limits limits) {
  if (!tower.is_list(key)) return tower.integer(key, limits);
  const auto pair = tower.integers(key, limits);
  if (pair.size() != 2 || pair[0] != pair[1]) tower.refuse(key, "two equal integers");
  return pair[0];
}

/// InternVL in transformers' own format, whose towers of 0.3 billion have biases, LayerNorm and no norms of queries.
Tower internvl(const Fields& tower, const Fields& outer) {
  Tower out;
  out.kind = "internvl";
  out.layers = tower.integer_or("num_hidden_layers", 24, kLayerLimits);
  out.hidden = tower.integer_or("hidden_size", 1024, kHiddenLimits);
  out.heads = tower.integer_or("num_attention_heads", 16, kHeadLimits);
  out.width = tower.integer_or("intermediate_size", 4096, kWidthLimits);
  out.patch = tower.has("patch_size") ? of_both_axes(tower, "patch_size", kPatchLimits) : 14;
  const std::int64_t side = (tower.has("image_size") ? of_both_axes(tower, "image_size", {1, 1 << 16}) : 448) / out.patch;
  out.positions = side * side + 1;  // and the class token
  if (!tower.flag_or("attention_bias", false)) tower.refuse("attention_bias", "true", "a tower without it is not described");
  if (tower.flag_or("use_qk_norm", false)) tower.refuse("use_qk_norm", "false", "a tower with it is not described");
  if (!tower.flag_or("use_mean_pooling", true)) tower.refuse("use_mean_pooling", "true", "a tower without it is not described");
  const double ratio = outer.number_or("downsample_ratio", 0.5, 0.01, 1);
  out.merge = static_cast<std::int64_t>(1 / ratio + 0.5);
  return out;
}

Tower moonvit(const Fields& tower, const Fields& outer) {
  Tower out;
  out.kind = "moonvit";
  const std::string prefix = tower.has("vt_hidden_size") ? "vt_" : "";  // Kimi-VL writes the plain keys
  out.layers = tower.integer(prefix + "num_hidden_layers", kLayerLimits);
  out.hidden = tower.integer(prefix + "hidden_size", kHiddenLimits);
  out.heads = tower.integer(prefix + "num_attention_heads", kHeadLimits);
  out.width = tower.integer(prefix + "intermediate_size", kWidthLimits);
  out.patch = tower.integer("patch_size", kPatchLimits);
  out.positions = tower.integer(present_key(tower, "init_pos_emb_height|pos_emb_height"), kPatchLimits) *
                  tower.integer(present_key(tower, "init_pos_emb_width|pos_emb_width"), kPatchLimits);
  out.projector_width = outer.integer_or("projection_hidden_size", out.hidden, kHiddenLimits);
  out.merge = 2;
  if (tower.has("merge_kernel_size")) {
    const auto kernel = tower.integers("merge_kernel_size", {1, 16});
    if (kernel.size() != 2 || kernel[0] != kernel[1]) tower.refuse("merge_kernel_size", "two equal integers");
    out.merge = kernel[0];
  }
  return out;
}

/// Defaults: transformers 5.23, Gemma4AudioConfig.
AudioTower gemma4_audio(const Fields& audio) {
  AudioTower out;
  out.layers = audio.integer_or("num_hidden_layers", 12, kLayerLimits);
  out.hidden = audio.integer_or("hidden_size", 1024, kHiddenLimits);
  out.heads = audio.integer_or("num_attention_heads", 8, kHeadLimits);
  out.kernel = audio.integer_or("conv_kernel_size", 5, {1, 1024});
  out.out_hidden = audio.integer_or("output_proj_dims", 1536, kHiddenLimits);
  const auto channels = audio.has("subsampling_conv_channels") ? audio.integers("subsampling_conv_channels", {1, 65536})
                                                               : std::vector<std::int64_t>{128, 32};
  if (channels.size() != 2) audio.refuse("subsampling_conv_channels", "two integers");
  std::copy(channels.begin(), channels.end(), out.channels);
  if (out.hidden % out.heads != 0) audio.refuse("hidden_size", "a multiple of num_attention_heads");
  return out;
}

Tower gemma4(const Fields& tower, const Fields& outer) {
  Tower out = common_tower(tower, "gemma4");
  if (const auto audio = outer.object_if("audio_config")) out.audio = gemma4_audio(*audio);
  out.head_dim = tower.integer_or("head_dim", 64, kHeadDimLimits);
  out.positions = tower.integer_or("position_embedding_size", 10240, kVocabLimits);
  return out;
}

/// Images and sound without a tower: patches of three by three are projected, frames of sound too (transformers 5.24,
/// models/gemma4_unified/modeling_gemma4_unified.py).
Tower gemma4_unified(const Fields& tower, const Fields& outer) {
  Tower out;
  out.kind = "gemma4_unified";
  out.patch = tower.integer_or("patch_size", 16, kPatchLimits) * tower.integer_or("pooling_kernel_size", 3, {1, 16});
  out.hidden = tower.integer_or("mm_embed_dim", 3840, kHiddenLimits);
  out.positions = tower.integer_or("mm_posemb_size", 1120, kVocabLimits);
  if (const auto audio = outer.object_if("audio_config"))
    out.audio.hidden = audio->integer_or("audio_embed_dim", 640, kHiddenLimits);
  return out;
}

Tower minimax_m3(const Fields& tower, const Fields& outer) {
  Tower out = common_tower(tower, "minimax_m3");
  out.temporal_patch = 2;
  out.merge = 2;
  if (const auto compression = tower.object_if("img_token_compression_config")) {
    out.temporal_patch = compression->integer_or("temporal_patch_size", 2, kPatchLimits);
    out.merge = compression->integer_or("spatial_merge_size", 2, {1, 16});
  }
  out.projector_width = outer.integer_or("projector_hidden_size", tower.integer("projection_dim", kWidthLimits), kWidthLimits);
  return out;
}

constexpr Wrapper kWrappers[] = {
    {"qwen2_vl", "text_config", "qwen2_vl_text", "vision_config", qwen2_vl},
    {"qwen2_5_vl", "text_config", "qwen2_5_vl_text", "vision_config", qwen2_5_vl},
    {"qwen3_vl", "text_config", "qwen3_vl_text", "vision_config", qwen3_vl},
    {"qwen3_vl_moe", "text_config", "qwen3_vl_moe_text", "vision_config", qwen3_vl},
    {"qwen3_5", "text_config", "qwen3_5_text", "vision_config", qwen3_vl},
    {"qwen3_5_moe", "text_config", "qwen3_5_moe_text", "vision_config", qwen3_vl},
    {"qwen3_omni_moe", "thinker_config.text_config", "qwen3_moe", "", nullptr},
    {"gemma3", "text_config", "gemma3_text", "vision_config", siglip},
    {"gemma3n", "text_config", "gemma3n_text", "", nullptr},
    {"gemma4", "text_config", "gemma4_text", "vision_config", gemma4},
    {"gemma4_unified", "text_config", "gemma4_unified_text", "vision_config", gemma4_unified},
    {"mistral3", "text_config", "mistral", "vision_config", pixtral},
    {"ministral3", "text_config", "ministral3", "vision_config", pixtral},
    {"llava", "text_config", "llama", "vision_config", clip},
    {"llama4", "text_config", "llama4_text", "vision_config", llama4},
    {"internvl_chat", "llm_config", "qwen2", "vision_config", internvit},
    {"internvl", "text_config", "qwen2", "vision_config", internvl},
    {"kimi_k25", "text_config", "kimi_k2", "vision_config", moonvit},
    {"kimi_vl", "text_config", "deepseek_v3", "vision_config", moonvit},
    {"kimi_k3", "text_config", "kimi_linear", "vision_config", nullptr},
    {"minimax_m3_vl", "text_config", "minimax_m3_vl_text", "vision_config", minimax_m3},
    {"phi3_v", "text_config", "phi3", "", nullptr},
    {"step3_vl", "text_config", "step3_text", "", nullptr},
    {"step3p7", "text_config", "step3p5", "", nullptr},
};

}  // namespace

std::span<const Wrapper> wrappers() { return kWrappers; }

}  // namespace oomplan
