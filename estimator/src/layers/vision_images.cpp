#include "layers/vision_images.hpp"

#include <utility>

#include "layers/kernels.hpp"
#include "layers/ops.hpp"
#include "layers/vision_ops.hpp"

namespace oomplan {

bool is_image_tower(const Tower& t) { return t.kind == "siglip" || t.kind == "internvl" || t.kind == "clip"; }

ImageTower::ImageTower(Eager& g, const Architecture& a, const PassOptions& o, const std::vector<Station>& stations)
    : VisionTower(g, a, o, stations),
      scales_(a.tower.kind == "internvl"),
      tokens_(patches_of_image_ + (scales_ || a.tower.kind == "clip" ? 1 : 0)),
      rows_(pass_.images * tokens_.coefficient) {
  kernels_.several_sequences = pass_.images > 1;
}

void ImageTower::declare_front() {
  const DType dtype = o_.kernels.parameters;
  if (scales_) {
    class_token_ = g_.parameter("embeddings.cls_token", {1, 1, t_.hidden}, dtype);
    positions_ = g_.parameter("embeddings.position_embeddings", {1, t_.positions, t_.hidden}, dtype);
    patch_.weight =
        g_.parameter("embeddings.patch_embeddings.projection.weight", {t_.hidden, kChannels, t_.patch, t_.patch}, dtype);
    patch_.bias = g_.parameter("embeddings.patch_embeddings.projection.bias", {t_.hidden}, dtype);
    return;
  }
  patch_.weight = g_.parameter("embeddings.patch_embedding.weight", {t_.hidden, kChannels, t_.patch, t_.patch}, dtype);
  patch_.bias = g_.parameter("embeddings.patch_embedding.bias", {t_.hidden}, dtype);
  positions_ = g_.parameter("embeddings.position_embedding.weight", {t_.positions, t_.hidden}, dtype);
}

void ImageTower::declare_block() {
  const DType dtype = o_.kernels.parameters;
  Block w;
  if (scales_) {
    w.scale1 = g_.parameter("lambda_1", {t_.hidden}, dtype);
    w.scale2 = g_.parameter("lambda_2", {t_.hidden}, dtype);
    w.q = matrix("attention.q_proj", t_.hidden, t_.hidden, true);
    w.k = matrix("attention.k_proj", t_.hidden, t_.hidden, true);
    w.v = matrix("attention.v_proj", t_.hidden, t_.hidden, true);
    w.out = matrix("attention.projection_layer", t_.hidden, t_.hidden, true);
    w.fc1 = matrix("mlp.fc1", t_.hidden, t_.width, true);
    w.fc2 = matrix("mlp.fc2", t_.width, t_.hidden, true);
    w.norm1 = declare_norm(g_, NormKind::layer, "layernorm_before", t_.hidden, dtype);
    w.norm2 = declare_norm(g_, NormKind::layer, "layernorm_after", t_.hidden, dtype);
    blocks_.push_back(w);
    return;
  }
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
  if (scales_) return;  // use_mean_pooling: an identity
  g_.prefix = "visual.";
  post_norm_ = declare_norm(g_, NormKind::layer, "post_layernorm", t_.hidden, o_.kernels.parameters);
}

void ImageTower::declare_merger() {
  const DType dtype = o_.kernels.parameters;
  g_.prefix = "visual.projector.";
  if (scales_) {
    const std::int64_t merged = t_.merge * t_.merge * t_.hidden;
    projector_norm_ = declare_norm(g_, NormKind::layer, "layer_norm", merged, dtype);
    projector1_ = matrix("linear_1", merged, a_.hidden, true);
    projector2_ = matrix("linear_2", a_.hidden, a_.hidden, true);
    return;
  }
  projection_ = g_.parameter("mm_input_projection_weight", {t_.hidden, a_.hidden}, dtype);
  projector_norm_ = declare_norm(g_, NormKind::rms_plus_one, "mm_soft_emb_norm", t_.hidden, dtype);
}

Tensor ImageTower::linear(Tensor x, const MatrixLeaf& w, std::int64_t width, const std::string& name) {
  return ops::linear(g_, std::move(x), w.weight, w.bias, rows_, {images_, tokens_, Dim(width)}, name);
}

/// Every patch by itself, and a row of the table for each of an image.
Tensor ImageTower::embeddings(const Tensor& images) {
  const Shape whole{images_, Dim(patches_of_image_), Dim(t_.hidden)};
  Tensor patches = vision_ops::patch_convolution(g_, images ? images : pixels(), patch_.weight, patch_.bias, whole);
  if (checkpoints() && pass_.train != TowerTraining::all) collect_gradient(patches);
  if (scales_) return with_class_token(std::move(patches));
  const Tensor numbers = g_.scalar(DType::int64);  // a buffer of the tower
  Tensor rows = vision_ops::embedding(g_, numbers, positions_, {Dim(1), tokens_, Dim(t_.hidden)}, "position_rows");
  return ops::add(g_, patches, std::move(rows), "embeddings");
}

/// The token of the class in front of each image's patches, and the table of positions, a parameter of the module itself.
Tensor ImageTower::with_class_token(Tensor patches) {
  const Shape whole{images_, tokens_, Dim(t_.hidden)};
  std::vector<Tensor> parts;
  parts.push_back(vision_ops::expanded(g_, class_token_, {images_, Dim(1), Dim(t_.hidden)}));
  parts.push_back(std::move(patches));
  Tensor joined = ops::cat(g_, std::move(parts), whole, "with_class_token");
  Tensor table = g_.leaf(positions_);
  table.shape = {Dim(1), tokens_, Dim(t_.hidden)};
  Tensor out = ops::add(g_, std::move(joined), std::move(table), "embeddings");
  g_.leave(positions_);
  return out;
}

/// `weights`: what eager attention returns beside its output.
Tensor ImageTower::attention(const Block& w, const Tensor& x, Tensor& weights) {
  const Dim heads(t_.heads), width(t_.hidden / t_.heads);
  Tensor query = linear(x, w.q, t_.hidden, "self_attn.q");
  Tensor key = linear(x, w.k, t_.hidden, "self_attn.k");
  Tensor value = linear(x, w.v, t_.hidden, "self_attn.v");
  for (Tensor* one : {&query, &key, &value}) one->shape = {images_, heads, tokens_, width};
  const Attention in{
      .query = query, .key = key, .value = value, .softmax_in_dtype = scales_, .out_shape = {images_, tokens_, heads, width}};
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
  hidden = mlp(w, hidden);
  return ops::add(g_, residual, std::move(hidden), "output");
}

Tensor ImageTower::activation(Tensor x) { return ops::activation(g_, std::move(x), "mlp.act"); }

Tensor ImageTower::mlp(const Block& w, const Tensor& x) {
  Tensor wide = linear(x, w.fc1, t_.width, "mlp.fc1");
  Tensor active = activation(std::move(wide));
  return linear(std::move(active), w.fc2, t_.hidden, "mlp.fc2");
}

/// InternVLVisionLayer.forward: what both halves return is scaled, under the same names.
Tensor ImageTower::run_scaled_block(const Block& w, const Tensor& x) {
  Tensor weights, attended;
  {
    Tensor normed = run_norm(g_, NormCode::layer, x, w.norm1, "layernorm_before");
    attended = attention(w, normed, weights);
  }
  attended = ops::mul(g_, g_.leaf(w.scale1), attended, "attention.scaled");
  Tensor hidden = ops::add(g_, attended, x, "after_attention");
  Tensor out = run_norm(g_, NormCode::layer, hidden, w.norm2, "layernorm_after");
  out = mlp(w, out);
  out = ops::mul(g_, g_.leaf(w.scale2), out, "mlp.scaled");
  return ops::add(g_, out, hidden, "output");
}

Eager::Function ImageTower::block(std::size_t, std::size_t number, const Tensor&) {
  return [this, &w = blocks_[number]](const Tensor& in) { return scales_ ? run_scaled_block(w, in) : run_block(w, in); };
}

/// SiglipVisionModel.forward: what goes into the blocks and what comes out of them are names until it returns.
Tensor ImageTower::tower(const Tensor& images, VisionNames& names) {
  const Tensor first = embeddings(images);
  const Tensor last = run_blocks(first);
  enter(StationPlace::merge);
  g_.prefix = "visual.";
  if (scales_) return names.last_hidden = last;
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

/// InternVLModel.pixel_shuffle of all tokens but the class's: two copies, the first for the second alone.
Tensor ImageTower::shuffled(const Tensor& hidden) {
  const Dim width(t_.hidden);
  Tensor patches = ops::slice(g_, hidden, {images_, Dim(patches_of_image_), width});
  const Shape whole = patches.shape;
  Tensor by_column = ops::copy(g_, std::move(patches), whole, "by_column");
  Tensor out = ops::copy(g_, by_column, whole, "by_row");
  out.shape = {images_, Dim(image_tokens(t_, pass_)), Dim(t_.merge * t_.merge * t_.hidden)};
  return out;
}

/// InternVLMultiModalProjector: one name, rebound.
Tensor ImageTower::projected_by_two(const Tensor& hidden) {
  const Dim rows(pass_.images * image_tokens(t_, pass_));
  g_.prefix = "visual.projector.";
  const Tensor squares = shuffled(hidden);
  const Shape wide{images_, Dim(image_tokens(t_, pass_)), Dim(a_.hidden)};
  Tensor x = run_norm(g_, NormCode::layer, squares, projector_norm_, "layer_norm");
  x = ops::linear(g_, x, projector1_.weight, projector1_.bias, rows, wide, "linear_1");
  x = ops::activation(g_, x, "act");
  x = ops::linear(g_, x, projector2_.weight, projector2_.bias, rows, wide, "linear_2");
  x.shape = {rows, Dim(a_.hidden)};
  g_.prefix.clear();
  return x;
}

void ImageTower::merge(Tensor& embeds, VisionNames& names) {
  enter(StationPlace::vision);
  g_.prefix = "visual.";
  {
    const Tensor cast = scales_ ? pixels() : Tensor();  // a name of get_image_features
    const Tensor hidden = tower(cast, names);
    names.embeds = names.pooled = scales_ ? projected_by_two(hidden) : projected(hidden);
  }
  returned_ = names.embeds;
  forget_outputs(names);
  Tensor joint = masks_and_scatter(embeds, names, false);
  embeds = std::move(joint);
}

}  // namespace oomplan
