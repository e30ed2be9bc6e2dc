#include "layers/vision_pixtral.hpp"

#include <utility>

#include "job/vision_pass.hpp"
#include "layers/kernels.hpp"
#include "layers/mlp.hpp"
#include "layers/ops.hpp"
#include "layers/rotary.hpp"
#include "layers/vision_ops.hpp"

namespace oomplan {

void PixtralTower::declare_front() {
  const DType dtype = o_.kernels.parameters;
  patch_.weight = g_.parameter("patch_conv.weight", {t_.hidden, kChannels, t_.patch, t_.patch}, dtype);
  first_norm_ = declare_norm(g_, NormKind::rms, "ln_pre", t_.hidden, dtype);
}

void PixtralTower::declare_block() {
  const DType dtype = o_.kernels.parameters;
  Block w;
  w.norm1 = declare_norm(g_, NormKind::rms, "attention_norm", t_.hidden, dtype);
  w.gate = matrix("feed_forward.gate_proj", t_.hidden, t_.width, false);
  w.up = matrix("feed_forward.up_proj", t_.hidden, t_.width, false);
  w.down = matrix("feed_forward.down_proj", t_.width, t_.hidden, false);
  w.k = matrix("attention.k_proj", t_.hidden, t_.hidden, false);
  w.v = matrix("attention.v_proj", t_.hidden, t_.hidden, false);
  w.q = matrix("attention.q_proj", t_.hidden, t_.hidden, false);
  w.o = matrix("attention.o_proj", t_.hidden, t_.hidden, false);
  w.norm2 = declare_norm(g_, NormKind::rms, "ffn_norm", t_.hidden, dtype);
  blocks_.push_back(w);
}

void PixtralTower::declare_merger() {
  g_.prefix = "visual.projector.";
  projector_norm_ = declare_norm(g_, NormKind::rms, "norm", t_.hidden, o_.kernels.parameters);
  merging_ = matrix("patch_merger.merging_layer", t_.merge * t_.merge * t_.hidden, t_.hidden, false);
  projector1_ = matrix("linear_1", t_.hidden, a_.hidden, t_.projector_bias);
  projector2_ = matrix("linear_2", a_.hidden, a_.hidden, t_.projector_bias);
}

Tensor PixtralTower::linear(Tensor x, const MatrixLeaf& w, std::int64_t width, const std::string& name) {
  return ops::linear(g_, std::move(x), w.weight, w.bias, patches_, {Dim(1), patches_, Dim(width)}, name);
}

std::vector<Shape> PixtralTower::of_images(const Shape& image) const {
  return std::vector<Shape>(static_cast<std::size_t>(pass_.images), image);
}

/// torch.cat of each image's patches, which the convolution made by channel.
Tensor PixtralTower::in_one_row(const Tensor& patches) {
  const Dim width(t_.hidden);
  std::vector<Tensor> parts = ops::split(g_, patches, of_images({Dim(patches_of_image_), width}));
  return ops::cat(g_, std::move(parts), {Dim(1), patches_, width}, "patches");
}

/// PixtralVisionRotaryEmbedding.forward and generate_block_attention_mask; flash-attention gets lengths in place of a mask.
PixtralTower::Given PixtralTower::tables() {
  const bool grad = std::exchange(g_.grad_enabled, false);
  const std::int64_t width = t_.hidden / t_.heads;
  const DType dtype = kernels_.parameters;
  const auto fp32 = [&](const char* name, std::int64_t columns) {
    return g_.make(name, {patches_, Dim(columns)}, DType::fp32, Category::buffers);
  };
  Given out;
  {
    const Tensor freqs = fp32("rotary.freqs", width);
    Tensor cos = fp32("rotary.cos_axes", width), sin = fp32("rotary.sin_axes", width);
    const auto joined = [&](Tensor& table, const char* name) {
      const Tensor half = fp32("rotary.half", width / 2);
      Tensor whole = fp32(name, width);
      table = std::move(whole);
    };
    joined(cos, "rotary.cos_fp32");
    joined(sin, "rotary.sin_fp32");
    out.cos = ops::to(g_, cos, dtype, "rotary.cos");
    out.sin = ops::to(g_, sin, dtype, "rotary.sin");
  }
  if (kernels_.kernels != Kernels::hf_flash)
    out.mask = g_.make("attention.images", {Dim(1), Dim(1), patches_, patches_}, dtype, Category::buffers);
  g_.grad_enabled = grad;
  return out;
}

/// `weights`: what eager attention returns beside its output.
Tensor PixtralTower::attention(const Block& w, const Given& given, const Tensor& x, Tensor& weights) {
  const Dim heads(t_.heads), width(t_.hidden / t_.heads);
  Tensor query = linear(x, w.q, t_.hidden, "attention.q");
  Tensor key = linear(x, w.k, t_.hidden, "attention.k");
  Tensor value = linear(x, w.v, t_.hidden, "attention.v");
  for (Tensor* one : {&query, &key, &value}) one->shape = {Dim(1), heads, patches_, width};
  {
    LayerContext table;
    table.cos = given.cos;
    table.sin = given.sin;
    Rotated turned = apply_rotary(g_, RotaryCode{}, table, query, key);
    query = std::move(turned.query);
    key = std::move(turned.key);
  }
  const Attention in{
      .query = query, .key = key, .value = value, .mask = given.mask, .out_shape = {Dim(1), patches_, heads, width}};
  Attended attended = attend(g_, in, kernels_);
  weights = std::move(attended.weights);
  attended.output.shape = {Dim(1), patches_, Dim(t_.hidden)};
  return linear(attended.output, w.o, t_.hidden, "attention.o");
}

Tensor PixtralTower::run_block(const Block& w, const Given& given, const Tensor& x) {
  Tensor weights;  // `_` of the layer, to its end
  Tensor hidden = run_norm(g_, NormCode::rms, x, w.norm1, "attention_norm");
  hidden = attention(w, given, hidden, weights);
  const Tensor residual = ops::add(g_, x, std::move(hidden), "after_attention");
  hidden = run_norm(g_, NormCode::rms, residual, w.norm2, "ffn_norm");
  const GatedLeaves leaves{w.gate.weight, -1, w.up.weight, -1, -1, w.down.weight, -1};
  hidden = gated_mlp(g_, hidden, {Dim(1), patches_}, Dim(t_.hidden), Dim(t_.width), leaves, "feed_forward.", kernels_);
  return ops::add(g_, residual, std::move(hidden), "output");
}

Eager::Function PixtralTower::block(std::size_t, std::size_t number, const Tensor& hidden) {
  if (checkpoints() && o_.reentrant && hidden.needs_grad()) arguments_.push_back(given_);
  return [this, given = given_, &w = blocks_[number]](const Tensor& in) { return run_block(w, given, in); };
}

/// PixtralVisionModel.forward: what the convolution makes, and what goes into the blocks, are names until it returns.
Tensor PixtralTower::tower() {
  const Dim width(t_.hidden);
  Tensor patches =
      vision_ops::patch_convolution(g_, pixels(), patch_.weight, -1, {Dim(pass_.images), Dim(patches_of_image_), width});
  if (checkpoints() && pass_.train != TowerTraining::all) collect_gradient(patches);
  Tensor first = in_one_row(patches);
  first = run_norm(g_, NormCode::rms, first, first_norm_, "ln_pre");
  const Tensor positions = g_.make("position_ids", {patches_, Dim(2)}, DType::int64, Category::buffers);
  given_ = tables();
  Tensor last = run_blocks(first);
  given_ = {};
  return last;
}

/// unfold of every image, whose input lies by channel and is made contiguous inside.
std::vector<Tensor> PixtralTower::squares(const Tensor& features) {
  const Dim wide(t_.merge * t_.merge * t_.hidden), width(t_.hidden);
  const std::int64_t of_image = patches_of_image_ / (t_.merge * t_.merge);
  const Shape image{Dim(patches_of_image_), width}, grid{Dim(of_image), wide};
  const bool internals = o_.kernels.kernel_internals;
  std::vector<Tensor> grids;
  for (const Tensor& tokens : ops::split(g_, features, of_images(image))) {
    const Tensor inside = internals ? g_.make("unfold.input", image, tokens.dtype, Category::workspace) : Tensor();
    Tensor out = g_.make("unfold", grid, tokens.dtype);
    g_.record(out, "Im2ColBackward0", {&tokens}, [this, image, grid, internals](Gradients in) {
      const Tensor given = internals ? g_.make("unfold.given", grid, in[0].dtype, Category::workspace) : Tensor();
      return Gradients{ops::gradient(g_, "unfold_backward", image, in[0].dtype)};
    });
    grids.push_back(std::move(out));
  }
  return grids;
}

/// Mistral3PatchMerger.forward: every image's squares are names until it returns.
Tensor PixtralTower::merged(const Tensor& features) {
  const Dim rows(squares_), wide(t_.merge * t_.merge * t_.hidden);
  const std::vector<Tensor> grids = squares(features);
  const Tensor joined = ops::cat(g_, grids, {rows, wide}, "squares");
  return ops::linear(g_, joined, merging_.weight, -1, rows, {rows, Dim(t_.hidden)}, "merging_layer");
}

/// Mistral3MultiModalProjector.forward.
Tensor PixtralTower::projected(const Tensor& hidden) {
  const Dim rows(squares_);
  const Shape wide{rows, Dim(a_.hidden)};
  g_.prefix = "visual.projector.";
  Tensor row = hidden;
  row.shape = {patches_, Dim(t_.hidden)};
  Tensor features = run_norm(g_, NormCode::rms, row, projector_norm_, "norm");
  features = merged(features);
  Tensor x = ops::linear(g_, features, projector1_.weight, projector1_.bias, rows, wide, "linear_1");
  x = ops::activation(g_, x, "act");
  x = ops::linear(g_, x, projector2_.weight, projector2_.bias, rows, wide, "linear_2");
  g_.prefix.clear();
  return x;
}

void PixtralTower::leave_inputs() {
  arguments_.clear();
  VisionTower::leave_inputs();
}

void PixtralTower::merge(Tensor& embeds, VisionNames& names) {
  enter(StationPlace::vision);
  g_.prefix = "visual.";
  names.last_hidden = tower();
  enter(StationPlace::merge);
  names.pooled = projected(names.last_hidden);
  const Shape of_image{Dim(image_tokens(t_, pass_)), Dim(a_.hidden)};
  std::vector<Tensor> parts = ops::split(g_, names.pooled, of_images(of_image));
  names.embeds = ops::cat(g_, std::move(parts), names.pooled.shape, "image_features");
  returned_ = names.embeds;
  forget_outputs(names);
  Tensor joint = masks_and_scatter(embeds, names, false);
  embeds = std::move(joint);
}

}  // namespace oomplan
