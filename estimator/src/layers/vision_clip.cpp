#include "layers/vision_clip.hpp"

#include <algorithm>
#include <utility>

#include "layers/model.hpp"
#include "layers/ops.hpp"
#include "layers/vision_ops.hpp"

namespace oomplan {
void ClipTower::mark_idle(std::size_t begin) { idle_.push_back({begin, g_.leaves.size()}); }

void ClipTower::declare_front() {
  const DType dtype = o_.kernels.parameters;
  class_token_ = g_.parameter("embeddings.class_embedding", {t_.hidden}, dtype);
  patch_.weight = g_.parameter("embeddings.patch_embedding.weight", {t_.hidden, kChannels, t_.patch, t_.patch}, dtype);
  positions_ = g_.parameter("embeddings.position_embedding.weight", {t_.positions, t_.hidden}, dtype);
  first_norm_ = declare_norm(g_, NormKind::layer, "pre_layrnorm", t_.hidden, dtype);
}

void ClipTower::declare_block() {
  const std::size_t begin = g_.leaves.size();
  ImageTower::declare_block();
  std::int64_t simulated = 0;  // of all runs but the last
  for (std::size_t r = 0; r + 1 < runs_.size(); ++r) simulated += std::min<std::int64_t>(kSimulatedUnits, runs_[r].count);
  if (static_cast<std::int64_t>(++declared_) > simulated) mark_idle(begin);
}

void ClipTower::declare_last() {
  const std::size_t begin = g_.leaves.size();
  ImageTower::declare_last();
  mark_idle(begin);
}

void ClipTower::declare_merger() {
  g_.prefix = "visual.projector.";
  projector1_ = matrix("linear_1", t_.hidden, a_.hidden, t_.projector_bias);
  projector2_ = matrix("linear_2", a_.hidden, a_.hidden, t_.projector_bias);
}

Tensor ClipTower::activation(Tensor x) { return vision_ops::quick_gelu(g_, std::move(x)); }

Eager::Function ClipTower::block(std::size_t run, std::size_t number, const Tensor& hidden) {
  if (run + 1 == runs_.size()) selected_ = hidden;
  return ImageTower::block(run, number, hidden);
}

/// CLIPVisionEmbeddings.forward: what the convolution makes is a name until it returns.
Tensor ClipTower::embeddings() {
  const Dim width(t_.hidden);
  Tensor patches = vision_ops::patch_convolution(g_, pixels(), patch_.weight, -1, {images_, Dim(patches_of_image_), width});
  if (checkpoints() && pass_.train != TowerTraining::all) collect_gradient(patches);
  std::vector<Tensor> parts;
  parts.push_back(vision_ops::expanded(g_, class_token_, {images_, Dim(1), width}));
  parts.push_back(patches);
  Tensor joined = ops::cat(g_, std::move(parts), {images_, tokens_, width}, "with_class_token");
  const Tensor numbers = g_.scalar(DType::int64);  // a buffer of the tower
  Tensor rows = vision_ops::embedding(g_, numbers, positions_, {Dim(1), tokens_, width}, "position_rows");
  return ops::add(g_, joined, std::move(rows), "embeddings");
}

/// CLIPVisionModel.forward; the class token's last hidden state is normed for nobody.
Tensor ClipTower::tower(VisionNames& names) {
  Tensor first = embeddings();
  first = run_norm(g_, NormCode::layer, first, first_norm_, "pre_layrnorm");
  names.last_hidden = run_blocks(first);
  enter(StationPlace::merge);
  g_.prefix = "visual.";
  const Tensor of_class = ops::slice(g_, names.last_hidden, {images_, Dim(t_.hidden)});
  return run_norm(g_, NormCode::layer, of_class, post_norm_, "post_layernorm");
}

/// LlavaMultiModalProjector of a view without the class token, which several images make uneven: it is copied.
Tensor ClipTower::projected(const Tensor& patches) {
  const Dim rows(pass_.images * patches_of_image_);
  const Shape wide{images_, Dim(patches_of_image_), Dim(a_.hidden)};
  g_.prefix = "visual.projector.";
  Tensor folded = pass_.images > 1 ? ops::copy(g_, patches, patches.shape, "in_rows") : patches;
  Tensor x = ops::linear(g_, std::move(folded), projector1_.weight, projector1_.bias, rows, wide, "linear_1");
  x = ops::activation(g_, x, "act");
  x = ops::linear(g_, x, projector2_.weight, projector2_.bias, rows, wide, "linear_2");
  g_.prefix.clear();
  return x;
}

void ClipTower::merge(Tensor& embeds, VisionNames& names) {
  enter(StationPlace::vision);
  g_.prefix = "visual.";
  const Dim width(a_.hidden);
  {
    const Tensor pooled = tower(names);
    names.features.push_back(std::move(selected_));  // hidden_states of the tower's output
    selected_.reset();
    const Tensor patches = ops::slice(g_, names.features.back(), {images_, Dim(patches_of_image_), Dim(t_.hidden)});
    names.pooled = projected(patches);
  }
  const std::vector<Shape> of_images(static_cast<std::size_t>(pass_.images), {Dim(patches_of_image_), width});
  std::vector<Tensor> features = ops::split(g_, names.pooled, of_images);
  names.embeds = ops::cat(g_, std::move(features), {Dim(pass_.images * patches_of_image_), width}, "features");
  returned_ = names.embeds;
  forget_outputs(names);
  Tensor joint = masks_and_scatter(embeds, names, false);
  embeds = std::move(joint);
  retire_idle();
}

/// No gradient reaches these leaves, so they have no states. Adapters among them keep their format.
void ClipTower::retire_idle() {
  for (const auto& [begin, end] : idle_)
    for (std::size_t i = begin; i < end; ++i) {
      Leaf& leaf = g_.leaves[i];
      if (leaf.trainable && o_.kernels.adapters.rank > 0) leaf.packed = PackedLeaf::statistics;
      leaf.trainable = false;
    }
}

}  // namespace oomplan
