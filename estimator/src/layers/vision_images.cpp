#include "layers/vision_images.hpp"

#include <utility>

#include "layers/kernels.hpp"
#include "layers/ops.hpp"
#include "layers/vision_ops.hpp"

namespace oomplan {

bool is_image_tower(const Tower& t) { return t.kind == "siglip"; }

ImageTower::ImageTower(Eager& g, const Architecture& a, const PassOptions& o, const std::vector<Station>& stations)
    : VisionTower(g, a, o, stations) {
  kernels_.several_sequences = pass_.images > 1;
}

void ImageTower::declare_front() {
  const DType dtype = o_.kernels.parameters;
  patch_.weight = g_.parameter("embeddings.patch_embedding.weight", {t_.hidden, kChannels, t_.patch, t_.patch}, dtype);
  patch_.bias = g_.parameter("embeddings.patch_embedding.bias", {t_.hidden}, dtype);
  positions_ = g_.parameter("embeddings.position_embedding.weight", {t_.positions, t_.hidden}, dtype);
}

void ImageTower::declare_block() {
  const DType dtype = o_.kernels.parameters;
  Block w;
  w.norm1 = declare_norm(g_, NormKind::layer, "layer_norm1", t_.hidden, dtype);
  w.k = matrix("self_attn.k_proj", t_.hidden, t_.hidden, true);
  w.v = matrix("self_attn.v_proj", t_.hidden, t_.hidden, true);
  w.q = matrix("self_attn.q_proj", t_.hidden, t_.hidden, true);
  w.out = matrix("self_attn.out_proj", t_.hidden, t_.hidden, true);
  w.norm2 = declare_norm(g_, NormKind::layer, "layer_norm2", t_.hidden, dtype);
  w.fc1 = matrix("mlp.fc1", t_.hidden, t_.width, true);
  w.fc2 = matrix("mlp.fc2", t_.width, t_.hidden, true);
  blocks_.push_back(w);
}

void ImageTower::declare_last() {
  g_.prefix = "visual.";
  post_norm_ = declare_norm(g_, NormKind::layer, "post_layernorm", t_.hidden, o_.kernels.parameters);
}

void ImageTower::declare_merger() {
  const DType dtype = o_.kernels.parameters;
  g_.prefix = "visual.projector.";
  projection_ = g_.parameter("mm_input_projection_weight", {t_.hidden, a_.hidden}, dtype);
  projector_norm_ = declare_norm(g_, NormKind::rms_plus_one, "mm_soft_emb_norm", t_.hidden, dtype);
}

Tensor ImageTower::linear(Tensor x, const MatrixLeaf& w, std::int64_t width, const std::string& name) {
  return ops::linear(g_, std::move(x), w.weight, w.bias, patches_, {images_, tokens_, Dim(width)}, name);
}

/// Every patch by itself, and a row of the table for each of an image.
Tensor ImageTower::embeddings() {
  const Shape whole{images_, tokens_, Dim(t_.hidden)};
  Tensor patches = vision_ops::patch_convolution(g_, pixels(), patch_.weight, patch_.bias, whole);
  if (checkpoints() && pass_.train != TowerTraining::all) collect_gradient(patches);
  const Tensor numbers = g_.scalar(DType::int64);  // a buffer of the tower
  Tensor rows = vision_ops::embedding(g_, numbers, positions_, {Dim(1), tokens_, Dim(t_.hidden)}, "position_rows");
  return ops::add(g_, patches, std::move(rows), "embeddings");
}

/// `weights`: what eager attention returns beside its output.
Tensor ImageTower::attention(const Block& w, const Tensor& x, Tensor& weights) {
  const Dim heads(t_.heads), width(t_.hidden / t_.heads);
  Tensor query = linear(x, w.q, t_.hidden, "self_attn.q");
  Tensor key = linear(x, w.k, t_.hidden, "self_attn.k");
  Tensor value = linear(x, w.v, t_.hidden, "self_attn.v");
  for (Tensor* one : {&query, &key, &value}) one->shape = {images_, heads, tokens_, width};
  const Attention in{.query = query, .key = key, .value = value, .out_shape = {images_, tokens_, heads, width}};
  Attended attended = attend(g_, in, kernels_);
  weights = std::move(attended.weights);
  attended.output.shape = {images_, tokens_, Dim(t_.hidden)};
  Tensor out = linear(attended.output, w.out, t_.hidden, "self_attn.out");
  return out;
}

Tensor ImageTower::run_block(const Block& w, const Tensor& x) {
  Tensor weights;  // `_` of the layer, to its end
  Tensor hidden = run_norm(g_, NormCode::layer, x, w.norm1, "layer_norm1");
  hidden = attention(w, hidden, weights);
  Tensor residual = ops::add(g_, x, std::move(hidden), "after_attention");
  hidden = run_norm(g_, NormCode::layer, residual, w.norm2, "layer_norm2");
  {
    Tensor wide = linear(hidden, w.fc1, t_.width, "mlp.fc1");
    Tensor active = ops::activation(g_, std::move(wide), "mlp.act");
    hidden = linear(std::move(active), w.fc2, t_.hidden, "mlp.fc2");
  }
  return ops::add(g_, residual, std::move(hidden), "output");
}

Eager::Function ImageTower::block(std::size_t, std::size_t number, const Tensor&) {
  return [this, &w = blocks_[number]](const Tensor& in) { return run_block(w, in); };
}

/// SiglipVisionModel.forward: what goes into the blocks and what comes out of them are names until it returns.
Tensor ImageTower::tower(VisionNames& names) {
  enter(StationPlace::vision);
  g_.prefix = "visual.";
  const Tensor first = embeddings();
  const Tensor last = run_blocks(first);
  enter(StationPlace::merge);
  g_.prefix = "visual.";
  names.last_hidden = run_norm(g_, NormCode::layer, last, post_norm_, "post_layernorm");
  return names.last_hidden;
}

/// Gemma3MultiModalProjector: squares of merge^2 patches are averaged, normed and projected.
Tensor ImageTower::projected(const Tensor& hidden) {
  const Dim rows(pass_.images * image_tokens(t_, pass_));
  g_.prefix = "visual.projector.";
  Tensor by_channel = ops::copy(g_, hidden, {images_, Dim(t_.hidden), tokens_}, "by_channel");
  Tensor pooled = vision_ops::average_pool(g_, by_channel, {images_, Dim(image_tokens(t_, pass_)), Dim(t_.hidden)});
  Tensor normed = run_norm(g_, NormCode::rms_plus_one, pooled, projector_norm_, "mm_soft_emb_norm");
  Tensor folded = pass_.images > 1 ? ops::copy(g_, normed, normed.shape, "in_rows") : normed;
  Tensor out = ops::linear(g_, std::move(folded), projection_, -1, rows, {rows, Dim(a_.hidden)}, "projected");
  g_.prefix.clear();
  return out;
}

void ImageTower::merge(Tensor& embeds, VisionNames& names) {
  const Tensor hidden = tower(names);
  names.embeds = names.pooled = projected(hidden);
  returned_ = names.embeds;
  Tensor joint = masks_and_scatter(embeds, names, false);
  embeds = std::move(joint);
}

}  // namespace oomplan
