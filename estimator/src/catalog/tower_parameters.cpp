// The parameter tensors of vision towers and their projectors, a function per kind.
//
// Legend: v hidden size of the tower, f its feed-forward width, h hidden size of the language model.
// Shapes: transformers 5.23,
// models/{qwen2_vl,qwen2_5_vl,qwen3_vl,siglip,gemma3,clip,llava,pixtral,mistral3,llama4,kimi_k25,gemma4,
// minimax_m3_vl}/modeling_*.py;
// InternViT: modeling_intern_vit.py beside the InternVL3 checkpoints.
#include <initializer_list>
#include <string>
#include <string_view>

#include "catalog/inventory.hpp"

namespace oomplan {
namespace {

using Part = ParameterPart;
using Split = SplitAxis;

void dense(Inventory& out, const char* name, std::int64_t in, std::int64_t width, bool bias) {
  out.linear(name, in, width, bias, Part::tower, Split::none);
}
void norm(Inventory& out, const char* name, NormKind kind, std::int64_t width) { out.norm(name, kind, width, Part::tower); }
void patch(Inventory& out, const Tower& t, std::int64_t frames, bool bias) {
  dense(out, "patch_embed", 3 * frames * t.patch * t.patch, t.hidden, bias);
}
void positions(Inventory& out, const Tower& t) { out.tensor("position_embedding", {t.positions, t.hidden}, Part::tower); }

/// A block of q, k, v, out and two matrices, with two norms.
void plain_block(Inventory& out, const Tower& t, NormKind kind, bool bias) {
  norm(out, "norm1", kind, t.hidden);
  dense(out, "attn.qkv", t.hidden, 3 * t.hidden, bias);
  dense(out, "attn.proj", t.hidden, t.hidden, bias);
  norm(out, "norm2", kind, t.hidden);
  dense(out, "mlp.fc1", t.hidden, t.width, bias);
  dense(out, "mlp.fc2", t.width, t.hidden, bias);
}

void gated_block(Inventory& out, const Tower& t, std::int64_t attention_width, bool bias) {
  norm(out, "norm1", NormKind::rms, t.hidden);
  dense(out, "attn.qkv", t.hidden, 3 * attention_width, bias);
  dense(out, "attn.proj", attention_width, t.hidden, bias);
  norm(out, "norm2", NormKind::rms, t.hidden);
  dense(out, "mlp.gate_proj", t.hidden, t.width, bias);
  dense(out, "mlp.up_proj", t.hidden, t.width, bias);
  dense(out, "mlp.down_proj", t.width, t.hidden, bias);
}

void in_blocks(Inventory& out, const Tower& t) { out.at("visual.blocks.{l}.", -1, t.layers); }
void outside(Inventory& out) { out.at("visual.", -1, 1); }

/// Two biased matrices from merge^2 patches to the language model.
void merger(Inventory& out, const Tower& t, NormKind kind, std::int64_t norm_width) {
  const std::int64_t merged = t.merge * t.merge * t.hidden;
  norm(out, "merger.norm", kind, norm_width);
  dense(out, "merger.linear_fc1", merged, merged, true);
  dense(out, "merger.linear_fc2", merged, t.out_hidden, true);
}

void qwen2_vl(const Tower& t, std::int64_t, Inventory& out) {
  patch(out, t, t.temporal_patch, false);
  in_blocks(out, t);
  plain_block(out, t, NormKind::layer, true);
  outside(out);
  merger(out, t, NormKind::layer, t.hidden);
}

void qwen2_5_vl(const Tower& t, std::int64_t, Inventory& out) {
  patch(out, t, t.temporal_patch, false);
  in_blocks(out, t);
  gated_block(out, t, t.hidden, true);
  outside(out);
  merger(out, t, NormKind::rms, t.hidden);
}

void qwen3_vl(const Tower& t, std::int64_t, Inventory& out) {
  patch(out, t, t.temporal_patch, true);
  positions(out, t);
  in_blocks(out, t);
  plain_block(out, t, NormKind::layer, true);
  outside(out);
  merger(out, t, NormKind::layer, t.hidden);
  if (t.deepstack == 0) return;
  out.at("visual.deepstack.{l}.", -1, t.deepstack);
  merger(out, t, NormKind::layer, t.merge * t.merge * t.hidden);
}

/// SiglipMultiheadAttentionPoolingHead
void pooling_head(Inventory& out, const Tower& t) {
  out.tensor("head.probe", {1, 1, t.hidden}, Part::tower);
  dense(out, "head.attention.in_proj", t.hidden, 3 * t.hidden, true);
  dense(out, "head.attention.out_proj", t.hidden, t.hidden, true);
  norm(out, "head.layernorm", NormKind::layer, t.hidden);
  dense(out, "head.mlp.fc1", t.hidden, t.width, true);
  dense(out, "head.mlp.fc2", t.width, t.hidden, true);
}

void siglip(const Tower& t, std::int64_t h, Inventory& out) {
  patch(out, t, 1, true);
  positions(out, t);
  in_blocks(out, t);
  plain_block(out, t, NormKind::layer, true);
  outside(out);
  norm(out, "post_layernorm", NormKind::layer, t.hidden);
  if (t.pooling_head) pooling_head(out, t);
  norm(out, "mm_soft_emb_norm", NormKind::rms, t.hidden);
  dense(out, "mm_input_projection", t.hidden, h, false);
}

void clip(const Tower& t, std::int64_t h, Inventory& out) {
  patch(out, t, 1, false);
  out.tensor("class_embedding", {t.hidden}, Part::tower);
  positions(out, t);
  norm(out, "pre_layrnorm", NormKind::layer, t.hidden);
  in_blocks(out, t);
  plain_block(out, t, NormKind::layer, true);
  outside(out);
  norm(out, "post_layernorm", NormKind::layer, t.hidden);
  dense(out, "projector.linear_1", t.hidden, h, t.projector_bias);
  dense(out, "projector.linear_2", h, h, t.projector_bias);
}

void pixtral(const Tower& t, std::int64_t h, Inventory& out) {
  patch(out, t, 1, false);
  norm(out, "ln_pre", NormKind::rms, t.hidden);
  in_blocks(out, t);
  gated_block(out, t, t.heads * t.head_dim, false);
  outside(out);
  norm(out, "projector.norm", NormKind::rms, t.hidden);
  dense(out, "projector.patch_merger", t.merge * t.merge * t.hidden, t.hidden, false);
  dense(out, "projector.linear_1", t.hidden, h, t.projector_bias);
  dense(out, "projector.linear_2", h, h, t.projector_bias);
}

void llama4(const Tower& t, std::int64_t h, Inventory& out) {
  patch(out, t, 1, false);
  out.tensor("class_embedding", {t.hidden}, Part::tower);
  positions(out, t);
  norm(out, "layernorm_pre", NormKind::layer, t.hidden);
  in_blocks(out, t);
  plain_block(out, t, NormKind::layer, true);
  outside(out);
  norm(out, "layernorm_post", NormKind::layer, t.hidden);
  dense(out, "vision_adapter.fc1", t.merge * t.merge * t.hidden, t.projector_width, false);
  dense(out, "vision_adapter.fc2", t.projector_width, t.out_hidden, false);
  dense(out, "multi_modal_projector", t.out_hidden, h, t.projector_bias);
}

void internvit(const Tower& t, std::int64_t h, Inventory& out) {
  patch(out, t, 1, true);
  out.tensor("class_embedding", {t.hidden}, Part::tower);
  positions(out, t);
  in_blocks(out, t);
  plain_block(out, t, NormKind::layer, true);
  out.tensor("ls", {2, t.hidden}, Part::tower);
  outside(out);
  const std::int64_t merged = t.merge * t.merge * t.hidden;
  norm(out, "mlp1.0", NormKind::layer, merged);
  dense(out, "mlp1.1", merged, h, true);
  dense(out, "mlp1.3", h, h, true);
}

void moonvit(const Tower& t, std::int64_t h, Inventory& out) {
  patch(out, t, 1, true);
  positions(out, t);
  in_blocks(out, t);
  plain_block(out, t, NormKind::layer, true);
  outside(out);
  norm(out, "final_layernorm", NormKind::layer, t.hidden);
  const std::int64_t merged = t.merge * t.merge * t.hidden;
  norm(out, "mm_projector.pre_norm", NormKind::layer, t.projector_width);
  dense(out, "mm_projector.in_proj", merged, merged, true);
  dense(out, "mm_projector.out_proj", merged, h, true);
}

/// Gemma4AudioModel and the projection behind it: blocks of a feed-forward half, attention, a convolution and another half.
void gemma4_audio(const AudioTower& a, std::int64_t h, Inventory& out) {
  const auto norms = [&](std::initializer_list<const char*> names) {
    for (const char* const name : names) norm(out, name, NormKind::rms, a.hidden);
  };
  out.at("audio.", -1, 1);
  out.tensor("subsample_conv_projection.layer0.conv", {a.channels[0], 1, 3, 3}, Part::tower);
  out.tensor("subsample_conv_projection.layer0.norm", {a.channels[0]}, Part::tower);
  out.tensor("subsample_conv_projection.layer1.conv", {a.channels[1], a.channels[0], 3, 3}, Part::tower);
  out.tensor("subsample_conv_projection.layer1.norm", {a.channels[1]}, Part::tower);
  dense(out, "subsample_conv_projection.input_proj_linear", a.channels[0] / 4 * a.channels[1], a.hidden, false);
  dense(out, "output_proj", a.hidden, a.out_hidden, true);
  dense(out, "embedding_projection", a.out_hidden, h, false);
  out.at("audio.layers.{l}.", -1, a.layers);
  for (const char* const half : {"feed_forward1.", "feed_forward2."}) {
    dense(out, (std::string(half) + "ffw_layer_1").c_str(), a.hidden, 4 * a.hidden, false);
    dense(out, (std::string(half) + "ffw_layer_2").c_str(), 4 * a.hidden, a.hidden, false);
    norm(out, (std::string(half) + "pre_layer_norm").c_str(), NormKind::rms, a.hidden);
    norm(out, (std::string(half) + "post_layer_norm").c_str(), NormKind::rms, a.hidden);
  }
  for (const char* const matrix :
       {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.post", "self_attn.relative_k_proj"})
    dense(out, matrix, a.hidden, a.hidden, false);
  out.tensor("self_attn.per_dim_scale", {a.hidden / a.heads}, Part::tower);
  dense(out, "lconv1d.linear_start", a.hidden, 2 * a.hidden, false);
  dense(out, "lconv1d.linear_end", a.hidden, a.hidden, false);
  out.tensor("lconv1d.depthwise_conv1d", {a.hidden, 1, a.kernel}, Part::tower);
  norms({"lconv1d.pre_layer_norm", "lconv1d.conv_norm", "norm_pre_attn", "norm_post_attn", "norm_out"});
}

void gemma4(const Tower& t, std::int64_t h, Inventory& out) {
  patch(out, t, 1, false);
  out.tensor("position_embedding_table", {2, t.positions, t.hidden}, Part::tower);
  in_blocks(out, t);
  gated_block(out, t, t.heads * t.head_dim, false);
  norm(out, "post_attention_layernorm", NormKind::rms, t.hidden);
  norm(out, "post_feedforward_layernorm", NormKind::rms, t.hidden);
  norm(out, "attn.q_norm", NormKind::rms, t.head_dim);
  norm(out, "attn.k_norm", NormKind::rms, t.head_dim);
  outside(out);
  dense(out, "embedding_projection", t.hidden, h, false);
  if (t.audio.layers > 0) gemma4_audio(t.audio, h, out);
}

/// Gemma4UnifiedVisionEmbedder, and what projects frames of sound.
void gemma4_unified(const Tower& t, std::int64_t h, Inventory& out) {
  const std::int64_t pixels = 3 * t.patch * t.patch;
  out.tensor("pos_embedding", {t.positions, 2, t.hidden}, Part::tower);
  norm(out, "patch_ln1", NormKind::layer, pixels);
  dense(out, "patch_dense", pixels, t.hidden, true);
  norm(out, "patch_ln2", NormKind::layer, t.hidden);
  norm(out, "pos_norm", NormKind::layer, t.hidden);
  dense(out, "embedding_projection", t.hidden, h, false);
  if (t.audio.hidden == 0) return;
  out.at("audio.", -1, 1);
  dense(out, "embedding_projection", t.audio.hidden, h, false);
}

void minimax_m3(const Tower& t, std::int64_t h, Inventory& out) {
  patch(out, t, t.temporal_patch, false);
  norm(out, "pre_layrnorm", NormKind::layer, t.hidden);
  in_blocks(out, t);
  plain_block(out, t, NormKind::layer, true);
  outside(out);
  dense(out, "projector.linear_1", t.hidden, t.projector_width, true);
  dense(out, "projector.linear_2", t.projector_width, h, true);
  dense(out, "projector.merge_linear_1", t.merge * t.merge * h, t.projector_width, true);
  dense(out, "projector.merge_linear_2", t.projector_width, h, true);
}

struct TowerRow {
  std::string_view kind;
  void (*parameters)(const Tower&, std::int64_t, Inventory&);
};
constexpr TowerRow kTowers[] = {
    {"qwen2_vl", qwen2_vl},
    {"qwen2_5_vl", qwen2_5_vl},
    {"qwen3_vl", qwen3_vl},
    {"siglip", siglip},
    {"clip", clip},
    {"pixtral", pixtral},
    {"llama4", llama4},
    {"internvit", internvit},
    {"internvl", internvit},
    {"moonvit", moonvit},
    {"gemma4", gemma4},
    {"minimax_m3", minimax_m3},
    {"gemma4_unified", gemma4_unified},
};

}  // namespace

void tower_parameters(const Tower& tower, std::int64_t h, Inventory& out) {
  for (const TowerRow& row : kTowers) {
    if (row.kind != tower.kind) continue;
    outside(out);
    row.parameters(tower, h, out);
  }
}

}  // namespace oomplan
