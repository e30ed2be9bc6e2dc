#include "layers/vision_qwen.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "layers/mlp.hpp"
#include "layers/ops.hpp"
#include "layers/vision_ops.hpp"

namespace oomplan {
namespace {

using axis::B, axis::S;

bool learned_positions(const Tower& t) { return t.kind == "qwen3_vl"; }
bool gated(const Tower& t) { return t.kind == "qwen2_5_vl"; }
std::int64_t unit_of(const Tower& t) { return t.merge * t.merge; }

}  // namespace

QwenTower::QwenTower(Eager& g, const Architecture& a, const PassOptions& o, const std::vector<Station>& stations)
    : VisionTower(g, a, o, stations), norm_(gated(a.tower) ? NormCode::rms : NormCode::layer) {}

void QwenTower::declare_front() {
  const DType dtype = o_.kernels.parameters;
  patch_.weight = g_.parameter("patch_embed.proj.weight", {t_.hidden, kChannels, t_.temporal_patch, t_.patch, t_.patch}, dtype);
  if (!learned_positions(t_)) return;
  patch_.bias = g_.parameter("patch_embed.proj.bias", {t_.hidden}, dtype);
}

bool QwenTower::has_table() const { return learned_positions(t_); }

void QwenTower::declare_table() {
  positions_ = g_.parameter("pos_embed.weight", {t_.positions, t_.hidden}, o_.kernels.parameters);
}

void QwenTower::declare_block() {
  const DType dtype = o_.kernels.parameters;
  const NormKind kind = gated(t_) ? NormKind::rms : NormKind::layer;
  Block w;
  w.norm1 = declare_norm(g_, kind, "norm1", t_.hidden, dtype);
  w.norm2 = declare_norm(g_, kind, "norm2", t_.hidden, dtype);
  w.qkv = matrix("attn.qkv", t_.hidden, 3 * t_.hidden, true);
  w.proj = matrix("attn.proj", t_.hidden, t_.hidden, true);
  if (gated(t_)) w.gate = matrix("mlp.gate_proj", t_.hidden, t_.width, true);
  w.up = matrix(gated(t_) ? "mlp.up_proj" : learned_positions(t_) ? "mlp.linear_fc1" : "mlp.fc1", t_.hidden, t_.width, true);
  w.down = matrix(gated(t_) ? "mlp.down_proj" : learned_positions(t_) ? "mlp.linear_fc2" : "mlp.fc2", t_.width, t_.hidden, true);
  blocks_.push_back(w);
}

/// `merged_norm`: over what a merged patch has, not over each of its patches.
QwenTower::Merger QwenTower::new_merger(bool merged_norm) {
  const std::int64_t width = unit_of(t_) * t_.hidden;
  Merger w;
  w.norm = declare_norm(g_, gated(t_) ? NormKind::rms : NormKind::layer, "norm", merged_norm ? width : t_.hidden,
                        o_.kernels.parameters);
  w.fc1 = matrix(learned_positions(t_) ? "linear_fc1" : "mlp.0", width, width, true);
  w.fc2 = matrix(learned_positions(t_) ? "linear_fc2" : "mlp.2", width, t_.out_hidden, true);
  return w;
}

void QwenTower::declare_inner_merger() {
  g_.prefix = fmt::format("visual.deepstack.{}.", mergers_.size());
  mergers_.push_back(new_merger(true));
}

void QwenTower::declare_merger() {
  g_.prefix = "visual.merger.";
  merger_ = new_merger(false);
}

Tensor QwenTower::linear(Tensor x, const MatrixLeaf& w, Dim rows, Dim width, const std::string& name) {
  return ops::linear(g_, std::move(x), w.weight, w.bias, rows, {rows, width}, name);
}

/// Tokens that attend to each other, one number for each product: windows of an image from left to right and down, or images.
std::vector<std::int64_t> QwenTower::lengths(bool windowed) const {
  std::vector<std::int64_t> of_image;
  if (!windowed) {
    of_image.push_back(pass_.rows * pass_.columns);
  } else {
    const std::int64_t side = t_.window / t_.merge / t_.patch, rows = pass_.rows / t_.merge, columns = pass_.columns / t_.merge;
    for (std::int64_t top = 0; top < rows; top += side)
      for (std::int64_t left = 0; left < columns; left += side)
        of_image.push_back(std::min(side, rows - top) * std::min(side, columns - left) * unit_of(t_));
  }
  std::vector<std::int64_t> out;
  for (std::int64_t image = 0; image < pass_.images; ++image) out.insert(out.end(), of_image.begin(), of_image.end());
  return out;
}

/// Conv3d of every patch by itself.
Tensor QwenTower::embed_patches(const Tensor& pixels) {
  Tensor out = vision_ops::patch_convolution(g_, pixels, patch_.weight, patch_.bias, {patches_, Dim(t_.hidden)});
  const bool asked = checkpoints() || (o_.training && o_.kernels.adapters.input_gradients);
  if (asked && !out.grad_fn && pass_.train != TowerTraining::all && !learned_positions(t_)) collect_gradient(out);
  return out;
}

/// Four rows of the table for every patch, weighted in fp32. The taps' indices and weights are names of the tower, and the sum
/// is.
Tensor QwenTower::with_positions(Tensor hidden) {
  {
    Tensor rows = vision_ops::embedding(g_, taps_, positions_, {patches_, Dim(4), Dim(t_.hidden)}, "pos_embed.taps",
                                        o_.kernels.kernel_internals);
    Tensor weighted = ops::mul(g_, std::move(rows), tap_weights_, "pos_embed.weighted");
    position_rows_ = ops::sum(g_, std::move(weighted), {patches_, Dim(t_.hidden)}, "pos_embed");
  }
  Tensor cast = ops::to(g_, position_rows_, hidden.dtype, "pos_embed.cast");
  return ops::add(g_, std::move(hidden), std::move(cast), "with_positions");
}

/// input_tensor.reshape(m, merge^2, -1)[window_index]: the index lies on the host, so nothing of it is saved on the device.
Tensor QwenTower::permuted(Tensor x, Shape shape, const std::string& name) {
  return vision_ops::index_by_host(g_, std::move(x), std::move(shape), name);
}

/// cat([h, w]) twice, of the cosines or sines of both coordinates.
Tensor QwenTower::joined(const std::string& name) {
  const std::int64_t width = t_.hidden / t_.heads;
  Tensor half = g_.make(name + "_half", {patches_, Dim(width / 2)}, DType::fp32, Category::buffers);
  return g_.make(name, {patches_, Dim(width)}, DType::fp32, Category::buffers);
}

/// Up to transformers 5.10 Qwen2.5-VL's angles have the format of the module's buffer. Megatron's Float16Module casts that, too;
/// under FSDP buffers stay as they are. Every layer then makes both tables fp32 (apply_rotary_pos_emb_vision).
bool QwenTower::has_narrow_angles() const { return pass_.until_5_10 && t_.window > 0 && pass_.narrow_buffers; }

/// Up to transformers 5.10: angles of both coordinates, and those twice. Both are names of the tower.
QwenTower::Table QwenTower::tables_from_angles() {
  const bool grad = std::exchange(g_.grad_enabled, false);
  const std::int64_t width = t_.hidden / t_.heads;
  const DType format = has_narrow_angles() ? DType::bf16 : DType::fp32;
  const auto table = [&](const std::string& name, std::int64_t wide) {
    return g_.make(name, {patches_, Dim(wide)}, format, Category::buffers);
  };
  angles_ = table("rotary.angles", width / 2);
  if (t_.window > 0) {
    Tensor by_window = permuted(angles_, angles_.shape, "rotary.angles_by_window");
    angles_ = std::move(by_window);
  }
  both_angles_ = table("rotary.angles_twice", width);
  Table out;
  out.cos = table("rotary.cos", width);
  out.sin = table("rotary.sin", width);
  g_.grad_enabled = grad;
  return out;
}

QwenTower::Table QwenTower::tables() {
  if (pass_.until_5_10) return tables_from_angles();
  const bool grad = std::exchange(g_.grad_enabled, false);
  const Shape axes{patches_, Dim(2), Dim(t_.hidden / t_.heads / 4)};
  const auto fp32 = [&](const std::string& name, const Shape& shape) {
    return g_.make(name, shape, DType::fp32, Category::buffers);
  };
  Table out;
  {
    Tensor freqs;
    {
      Tensor wide = fp32("rotary.positions_fp32", {patches_, Dim(2), Dim(1)});
      freqs = fp32("rotary.freqs", axes);
    }
    const auto scaled = [&](const std::string& name) {
      Tensor plain = fp32(name + "_plain", axes);
      return fp32(name + "_axes", axes);
    };
    Tensor cos = scaled("rotary.cos"), sin = scaled("rotary.sin");
    Tensor whole = joined("rotary.cos");
    cos = std::move(whole);
    whole = joined("rotary.sin");
    sin = std::move(whole);
    out = {cos, sin};
  }
  if (t_.window > 0) {
    Tensor cos = permuted(out.cos, out.cos.shape, "rotary.cos_by_window");
    Tensor sin = permuted(out.sin, out.sin.shape, "rotary.sin_by_window");
    out = {cos, sin};
  }
  g_.grad_enabled = grad;
  return out;
}

Tensor QwenTower::attention(const Block& w, const Table& table, const std::vector<std::int64_t>& lengths, Tensor x) {
  const Dim heads(t_.heads), width(t_.hidden / t_.heads);
  std::vector<Tensor> parts;
  {
    Tensor qkv = linear(x, w.qkv, patches_, Dim(3 * t_.hidden), "attn.qkv");
    parts = vision_ops::unbind(g_, qkv, {patches_, heads, width}, 3);
  }
  Tensor query = std::move(parts[0]), key = std::move(parts[1]), value = std::move(parts[2]);
  {
    vision_ops::Pair turned = vision_ops::rotate(g_, query, key, table.cos, table.sin);
    query = std::move(turned.query);
    key = std::move(turned.key);
  }
  for (Tensor* one : {&query, &key, &value}) one->shape = {Dim(1), heads, patches_, width};
  Tensor output = vision_ops::attend_by_parts(g_, query, key, value, lengths, kernels_);
  output.shape = {patches_, Dim(t_.hidden)};
  return linear(output, w.proj, patches_, Dim(t_.hidden), "attn.proj");
}

Tensor QwenTower::mlp(const Block& w, Tensor x) {
  if (gated(t_)) {
    const GatedLeaves leaves{w.gate.weight, w.gate.bias, w.up.weight, w.up.bias, -1, w.down.weight, w.down.bias};
    return gated_mlp(g_, x, {patches_}, Dim(t_.hidden), Dim(t_.width), leaves, "mlp.", kernels_);
  }
  Tensor wide = linear(x, w.up, patches_, Dim(t_.width), "mlp.fc1");
  Tensor active =
      learned_positions(t_) ? ops::activation(g_, std::move(wide), "mlp.act") : vision_ops::quick_gelu(g_, std::move(wide));
  return linear(std::move(active), w.down, patches_, Dim(t_.hidden), "mlp.fc2");
}

Tensor QwenTower::run_block(const Block& w, const Table& table, const std::vector<std::int64_t>& lengths, const Tensor& x) {
  Tensor hidden;
  {
    Tensor attended = attention(w, table, lengths, run_norm(g_, norm_, x, w.norm1, "norm1"));
    hidden = ops::add(g_, x, std::move(attended), "after_attention");
  }
  Tensor transformed = mlp(w, run_norm(g_, norm_, hidden, w.norm2, "norm2"));
  return ops::add(g_, hidden, std::move(transformed), "output");
}

Eager::Function QwenTower::block(std::size_t run, std::size_t number, const Tensor& hidden) {
  Table given = table_;
  const auto cast = [this](const Table& wide) {
    return Table{ops::to(g_, wide.cos, kernels_.parameters, "rotary.cos_cast"),
                 ops::to(g_, wide.sin, kernels_.parameters, "rotary.sin_cast")};
  };
  // up to transformers 5.10 a checkpoint is around the module's call, and so around FSDP2's hooks
  if (pass_.casts_tables && pass_.until_5_10)
    return [this, given, cast, parts = lengths(runs_[run].windowed), &w = blocks_[number]](const Tensor& in) {
      return run_block(w, cast(given), parts, in);
    };
  if (pass_.casts_tables) given = cast(table_);
  if (has_narrow_angles())
    return [this, given, parts = lengths(runs_[run].windowed), &w = blocks_[number]](const Tensor& in) {
      const Table wide{ops::to(g_, given.cos, DType::fp32, "rotary.cos_fp32"),
                       ops::to(g_, given.sin, DType::fp32, "rotary.sin_fp32")};
      return run_block(w, wide, parts, in);
    };
  if (checkpoints() && o_.reentrant && hidden.needs_grad()) arguments_.push_back(given);
  return [this, given, parts = lengths(runs_[run].windowed), &w = blocks_[number]](const Tensor& in) {
    return run_block(w, given, parts, in);
  };
}

void QwenTower::merge_inner(const Tensor& hidden) {
  g_.prefix = "visual.deepstack.";
  features_.push_back(merged(hidden, mergers_[features_.size()], true));
}

/// Norm, two matrices with GELU between; merge^2 patches are one row.
Tensor QwenTower::merged(const Tensor& hidden, const Merger& w, bool merged_norm) {
  const Dim rows(patches_.coefficient / unit_of(t_)), width(unit_of(t_) * t_.hidden);
  Tensor in = hidden;
  if (merged_norm) in.shape = {rows, width};
  Tensor normed = run_norm(g_, norm_, in, w.norm, "norm");
  normed.shape = {rows, width};
  Tensor x = linear(normed, w.fc1, rows, width, "fc1");
  Tensor active = ops::activation(g_, x, "act");
  x = std::move(active);
  Tensor out = linear(x, w.fc2, rows, Dim(t_.out_hidden), "fc2");
  return out;
}

/// get_image_features and the tower's forward pass.
Tensor QwenTower::features(VisionNames& names) {
  enter(StationPlace::vision);
  g_.prefix = "visual.";
  const Tensor images = pixels();
  if (learned_positions(t_)) {
    const DType index = pass_.until_5_10 ? DType::int32 : DType::int64;
    taps_ = g_.make("pos_embed.indices", {patches_, Dim(4)}, index, Category::buffers);
    tap_weights_ = g_.make("pos_embed.weights", {patches_, Dim(4), Dim(1)}, DType::fp32, Category::buffers);
  }
  const Tensor positions = g_.make("position_ids", {patches_, Dim(2)}, DType::int64, Category::buffers);
  Tensor hidden = embed_patches(images);
  if (learned_positions(t_)) {
    enter(StationPlace::positions);
    Tensor sum = with_positions(hidden);
    hidden = std::move(sum);
  }
  if (t_.window > 0) {
    Tensor by_window = permuted(hidden, hidden.shape, "by_window");
    hidden = std::move(by_window);
  }
  table_ = tables();
  hidden = run_blocks(std::move(hidden));
  enter(StationPlace::merge);
  g_.prefix = "visual.merger.";
  Tensor out = merged(hidden, merger_, false);
  for (Tensor* one : {&taps_, &tap_weights_, &position_rows_, &angles_, &both_angles_}) one->reset();
  if (t_.window > 0) {
    Tensor in_order = permuted(out, out.shape, "in_order");
    out = std::move(in_order);
  }
  table_ = {};
  g_.prefix.clear();
  names.last_hidden = std::move(hidden);
  return out;
}

/// Features split by image and joined again: a copy, and a cat of the gradients.
Tensor QwenTower::joined_images(const Tensor& features, const std::string& name) {
  const Shape of_image{Dim(image_tokens(t_, pass_)), Dim(t_.out_hidden)};
  std::vector<Tensor> parts = ops::split(g_, features, std::vector<Shape>(static_cast<std::size_t>(pass_.images), of_image));
  return ops::cat(g_, std::move(parts), features.shape, name);
}

void QwenTower::leave_inputs() {
  arguments_.clear();
  VisionTower::leave_inputs();
}

/// verl/models/transformers/{qwen2_vl,qwen3_vl}.py, 0.7 to 0.10: _get_input_embeds. What leads to the joined embeddings has no
/// name behind it; features of inner blocks and the mask are the language model's arguments.
void QwenTower::merge_in_framework(Tensor& embeds, VisionNames& names) {
  Tensor pooled = features(names);
  names.last_hidden.reset();
  names.deepstack = std::exchange(features_, {});
  enter(StationPlace::merge);
  if (pass_.made_up) {
    std::vector<Tensor> all{pooled};
    all.insert(all.end(), names.deepstack.begin(), names.deepstack.end());
    names.deepstack.clear();
    pooled.reset();
    for (Tensor& one : all) {
      Tensor joint = vision_ops::add_nothing_of(g_, embeds, one);
      embeds = std::move(joint);
    }
    return;
  }
  names.image_mask = g_.make("image_mask", {B, Dim(o_.kernels.ulysses) * S}, DType::boolean, Category::buffers);
  Tensor joint = vision_ops::masked_scatter(g_, embeds, names.image_mask, pooled, o_.kernels.kernel_internals);
  embeds = std::move(joint);
  leave_pixels();
}

void QwenTower::merge(Tensor& embeds, VisionNames& names) {
  if (pass_.joins_itself) return merge_in_framework(embeds, names);
  names.pooled = features(names);
  names.features = std::exchange(features_, {});
  enter(StationPlace::merge);
  names.embeds = joined_images(names.pooled, "image_embeds");
  if (!learned_positions(t_)) forget_outputs(names);
  Tensor joint = masks_and_scatter(embeds, names, true);
  embeds = std::move(joint);
  for (const Tensor& one : names.features)
    names.deepstack.push_back(pass_.until_5_10 ? one : joined_images(one, "deepstack_embeds"));
  names.positions = g_.make("position_ids", {Dim(3), B, S}, DType::int64, Category::inputs);
}

}  // namespace oomplan
