#include "layers/vision.hpp"

#include <fmt/format.h>
#include <algorithm>
#include <utility>

#include "layers/every_nth.hpp"
#include "layers/mlp.hpp"
#include "layers/model.hpp"
#include "layers/ops.hpp"
#include "layers/vision_ops.hpp"

namespace oomplan {
namespace {

using axis::B, axis::S;

bool learned_positions(const Tower& t) { return t.kind == "qwen3_vl"; }
bool gated(const Tower& t) { return t.kind == "qwen2_5_vl"; }
std::int64_t unit_of(const Tower& t) { return t.merge * t.merge; }
constexpr std::int64_t kChannels = 3;

/// What of the kernels' options is the language model's alone.
KernelOptions of_tower(KernelOptions k) {
  k.several_sequences = k.padding_mask = k.softcap = k.hidden_dropout = k.attention_dropout = k.tiled_mlp = false;
  k.tensor = k.ulysses = 1;
  return k;
}

}  // namespace

std::vector<TowerRun> tower_runs(const Tower& t) {
  std::vector<TowerRun> out;
  const auto among = [](const std::vector<std::int64_t>& blocks, std::int64_t block) {
    return std::find(blocks.begin(), blocks.end(), block) != blocks.end();
  };
  for (std::int64_t block = 0; block < t.layers; ++block) {
    const bool windowed = t.window > 0 && !among(t.full_blocks, block);
    if (out.empty() || out.back().windowed != windowed || out.back().feeds_layers) out.push_back({windowed, 0});
    ++out.back().count;
    out.back().feeds_layers = among(t.deepstack_blocks, block);
  }
  return out;
}

int first_tower_run(const Architecture& a) {
  return static_cast<int>(first_apart(spaced_runs(a, 1, false), a.tower.deepstack).architecture.runs.size());
}

std::string unsupported_with_images(const PassOptions& o) {
  const KernelOptions& k = o.kernels;
  if (k.vision.images == 0) return {};
  if (k.kernels != Kernels::hf_flash && k.kernels != Kernels::hf_sdpa && k.kernels != Kernels::hf_eager)
    return "a vision tower of these kernels is not supported yet";
  if (k.tensor > 1 || k.ulysses > 1) return "a vision tower whose language model is split is not supported yet";
  if (k.autocast || k.adapters.rank > 0 || k.liger.any() || k.foak.any())
    return "autocast, LoRA or fused modules beside a vision tower are not supported yet";
  const bool spaced = o.recompute == Recompute::full && (o.recompute_every > 1 || k.offload_checkpoints);
  return spaced ? "such checkpoints beside a vision tower are not supported yet" : std::string();
}

Bytes tower_buffers(const Tower& t) {
  if (!unsupported_tower(t).empty() || t.heads == 0) return 0;
  return 2 * (t.hidden / t.heads / 4) * 4;
}

VisionTower::VisionTower(Eager& g, const Architecture& a, const PassOptions& o, const std::vector<Station>& stations)
    : g_(g),
      a_(a),
      o_(o),
      stations_(stations),
      kernels_(of_tower(o.kernels)),
      runs_(o.kernels.vision.images > 0 ? tower_runs(a.tower) : std::vector<TowerRun>()),
      norm_(gated(a.tower) ? NormCode::rms : NormCode::layer) {}

void VisionTower::plan(std::vector<Station>& stations, std::size_t first_run) {
  first_run_ = first_run;
  if (!there()) return;
  Station s;
  s.place = StationPlace::vision;
  stations.push_back(s);
  for (std::size_t r = 0; r < runs_.size(); ++r) {
    Station blocks;
    blocks.place = StationPlace::layers;
    blocks.run = static_cast<int>(first_run + r);
    blocks.count = runs_[r].count;
    blocks.simulated = static_cast<int>(std::min<std::int64_t>(kSimulatedUnits, blocks.count));
    stations.push_back(blocks);
    if (!runs_[r].feeds_layers) continue;
    Station merger;
    merger.place = StationPlace::deepstack;
    merger.run = blocks.run;
    stations.push_back(merger);
  }
  s.place = StationPlace::merge;
  stations.push_back(s);
}

void VisionTower::enter(StationPlace place, int run, int unit) {
  for (std::size_t i = 0; i < stations_.size(); ++i)
    if (stations_[i].place == place && stations_[i].run == run) g_.scope = static_cast<int>(i) * kUnitsPerStation + unit;
}

MatrixLeaf VisionTower::matrix(const std::string& name, std::int64_t in, std::int64_t out, bool bias) {
  MatrixLeaf leaf;
  leaf.weight = g_.parameter(name + ".weight", {out, in}, o_.kernels.parameters);
  if (bias) leaf.bias = g_.parameter(name + ".bias", {out}, o_.kernels.parameters);
  return leaf;
}

VisionTower::Block VisionTower::declare_block() {
  const DType dtype = o_.kernels.parameters;
  const NormKind kind = gated(t_) ? NormKind::rms : NormKind::layer;
  Block w;
  w.norm1 = declare_norm(g_, kind, "norm1", t_.hidden, dtype);
  w.norm2 = declare_norm(g_, kind, "norm2", t_.hidden, dtype);
  w.qkv = matrix("attn.qkv", t_.hidden, 3 * t_.hidden, true);
  w.proj = matrix("attn.proj", t_.hidden, t_.hidden, true);
  if (gated(t_)) w.gate = matrix("mlp.gate_proj", t_.hidden, t_.width, true);
  w.up = matrix(gated(t_) ? "mlp.up_proj" : "mlp.fc1", t_.hidden, t_.width, true);
  w.down = matrix(gated(t_) ? "mlp.down_proj" : "mlp.fc2", t_.width, t_.hidden, true);
  return w;
}

/// `merged_norm`: over what a merged patch has, not over each of its patches.
VisionTower::Merger VisionTower::declare_merger(bool merged_norm) {
  const std::int64_t width = unit_of(t_) * t_.hidden;
  Merger w;
  w.norm = declare_norm(g_, gated(t_) ? NormKind::rms : NormKind::layer, "norm", merged_norm ? width : t_.hidden,
                        o_.kernels.parameters);
  w.fc1 = matrix("fc1", width, width, true);
  w.fc2 = matrix("fc2", width, t_.out_hidden, true);
  return w;
}

void VisionTower::train_only(std::size_t from, std::size_t to, bool trains) {
  for (std::size_t i = from; i < to; ++i) g_.leaves[i].trainable = trains;
}

void VisionTower::declare() {
  if (!there()) return;
  const DType dtype = o_.kernels.parameters;
  const bool all = pass_.train == TowerTraining::all, mergers = pass_.train != TowerTraining::none;
  const auto declare_part = [&](bool trains, const auto& part) {
    const std::size_t begin = g_.leaves.size();
    part();
    train_only(begin, g_.leaves.size(), trains);
  };
  enter(StationPlace::vision);
  g_.prefix = "visual.";
  declare_part(all, [&] {
    patch_.weight = g_.parameter("patch_embed.proj.weight", {t_.hidden, kChannels, t_.temporal_patch, t_.patch, t_.patch}, dtype);
    if (learned_positions(t_)) patch_.bias = g_.parameter("patch_embed.proj.bias", {t_.hidden}, dtype);
    if (learned_positions(t_)) positions_ = g_.parameter("pos_embed.weight", {t_.positions, t_.hidden}, dtype);
  });
  for (std::size_t r = 0; r < runs_.size(); ++r) {
    const int run = static_cast<int>(first_run_ + r);
    for (int u = 0; u < std::min<std::int64_t>(kSimulatedUnits, runs_[r].count); ++u) {
      enter(StationPlace::layers, run, u);
      g_.prefix = "visual.block.";
      declare_part(all, [&] { blocks_.push_back(declare_block()); });
    }
    if (!runs_[r].feeds_layers) continue;
    enter(StationPlace::deepstack, run);
    g_.prefix = fmt::format("visual.deepstack.{}.", deepstack_.size());
    declare_part(mergers, [&] { deepstack_.push_back(declare_merger(true)); });
  }
  enter(StationPlace::merge);
  g_.prefix = "visual.merger.";
  declare_part(mergers, [&] { merger_ = declare_merger(false); });
  g_.prefix.clear();
}

void VisionTower::enter_inputs() {
  if (!there()) return;
  if (pass_.by_axis) token_types_ = g_.make("mm_token_type_ids", {B, S}, DType::int64, Category::inputs);
  const Dim pixels{kChannels * t_.temporal_patch * t_.patch * t_.patch};
  pixels_ = g_.make("pixel_values", {patches_, pixels}, DType::fp32, Category::inputs);
  if (pass_.casts_inputs) cast_pixels_ = ops::to(g_, pixels_, kernels_.parameters, "pixel_values.cast");
}

void VisionTower::leave_inputs() {
  input_leaf_.reset();
  input_gradient_.reset();
  arguments_.clear();
  token_types_.reset();
  pixels_.reset();
}

Tensor VisionTower::linear(Tensor x, const MatrixLeaf& w, Dim rows, Dim width, const std::string& name) {
  return ops::linear(g_, std::move(x), w.weight, w.bias, rows, {rows, width}, name);
}

/// Tokens that attend to each other, one number for each product: windows of an image from left to right and down, or images.
std::vector<std::int64_t> VisionTower::lengths(bool windowed) const {
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
Tensor VisionTower::embed_patches(const Tensor& pixels) {
  Tensor out = vision_ops::patch_convolution(g_, pixels, patch_.weight, patch_.bias, {patches_, Dim(t_.hidden)});
  if (checkpoints() && pass_.train != TowerTraining::all && !learned_positions(t_)) collect_gradient(out);
  return out;
}

/// Checkpoints make the output of every embedding layer want a gradient, the tower's too (transformers 5.23, modeling_utils.py:
/// activation_checkpointing_enable calls enable_input_require_grads): a frozen tower is in the graph, and this a leaf of it.
/// Qwen3-VL's tower names no such layer (_input_embed_layer): it stays out.
void VisionTower::collect_gradient(Tensor& hidden) {
  input_leaf_ = hidden;
  g_.storages[static_cast<std::size_t>(hidden.storage())].saved = true;
  auto collector = std::make_shared<Node>();
  collector->name = "AccumulateGrad";
  collector->sequence = kAccumulates;
  collector->scope = g_.scope;
  collector->apply = [this](Gradients given) {
    input_gradient_ = std::move(given[0]);
    return Gradients{};
  };
  hidden.grad_fn = std::move(collector);
}

/// Four rows of the table for every patch, weighted in fp32. The taps' indices and weights are names of the tower, and the sum
/// is.
Tensor VisionTower::with_positions(Tensor hidden) {
  {
    Tensor rows = vision_ops::embedding(g_, taps_, positions_, {patches_, Dim(4), Dim(t_.hidden)}, "pos_embed.taps");
    Tensor weighted = ops::mul(g_, std::move(rows), tap_weights_, "pos_embed.weighted");
    position_rows_ = ops::sum(g_, std::move(weighted), {patches_, Dim(t_.hidden)}, "pos_embed");
  }
  Tensor cast = ops::to(g_, position_rows_, hidden.dtype, "pos_embed.cast");
  return ops::add(g_, std::move(hidden), std::move(cast), "with_positions");
}

/// input_tensor.reshape(m, merge^2, -1)[window_index]: the index lies on the host, so nothing of it is saved on the device.
Tensor VisionTower::permuted(Tensor x, Shape shape, const std::string& name) {
  return vision_ops::index_by_host(g_, std::move(x), std::move(shape), name);
}

/// cat([h, w]) twice, of the cosines or sines of both coordinates.
Tensor VisionTower::joined(const std::string& name) {
  const std::int64_t width = t_.hidden / t_.heads;
  Tensor half = g_.make(name + "_half", {patches_, Dim(width / 2)}, DType::fp32, Category::buffers);
  return g_.make(name, {patches_, Dim(width)}, DType::fp32, Category::buffers);
}

VisionTower::Table VisionTower::tables() {
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

Tensor VisionTower::attention(const Block& w, const Table& table, const std::vector<std::int64_t>& lengths, Tensor x) {
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

Tensor VisionTower::mlp(const Block& w, Tensor x) {
  if (gated(t_)) {
    const GatedLeaves leaves{w.gate.weight, w.gate.bias, w.up.weight, w.up.bias, -1, w.down.weight, w.down.bias};
    return gated_mlp(g_, x, {patches_}, Dim(t_.hidden), Dim(t_.width), leaves, "mlp.", kernels_);
  }
  Tensor wide = linear(x, w.up, patches_, Dim(t_.width), "mlp.fc1");
  Tensor active =
      learned_positions(t_) ? ops::activation(g_, std::move(wide), "mlp.act") : vision_ops::quick_gelu(g_, std::move(wide));
  return linear(std::move(active), w.down, patches_, Dim(t_.hidden), "mlp.fc2");
}

Tensor VisionTower::run_block(const Block& w, const Table& table, const std::vector<std::int64_t>& lengths, const Tensor& x) {
  Tensor hidden;
  {
    Tensor attended = attention(w, table, lengths, run_norm(g_, norm_, x, w.norm1, "norm1"));
    hidden = ops::add(g_, x, std::move(attended), "after_attention");
  }
  Tensor transformed = mlp(w, run_norm(g_, norm_, hidden, w.norm2, "norm2"));
  return ops::add(g_, hidden, std::move(transformed), "output");
}

Tensor VisionTower::run_blocks(Tensor hidden, const Table& table, VisionNames& names) {
  std::size_t number = 0;
  for (std::size_t r = 0; r < runs_.size(); ++r) {
    const std::vector<std::int64_t> parts = lengths(runs_[r].windowed);
    const std::int64_t units = std::min<std::int64_t>(kSimulatedUnits, runs_[r].count);
    for (int u = 0; u < units; ++u) {
      enter(StationPlace::layers, static_cast<int>(first_run_ + r), u);
      g_.prefix = "visual.block.";
      Table given = table;
      if (pass_.casts_inputs) {
        given.cos = ops::to(g_, table.cos, kernels_.parameters, "rotary.cos_cast");
        given.sin = ops::to(g_, table.sin, kernels_.parameters, "rotary.sin_cast");
      }
      const Block& w = blocks_[number++];
      const auto body = [this, &w, given, parts](const Tensor& in) { return run_block(w, given, parts, in); };
      Tensor next = checkpoints() && o_.reentrant ? g_.checkpoint_reentrant(hidden, body)
                    : checkpoints()               ? g_.checkpoint(hidden, body)
                                                  : body(hidden);
      hidden = std::move(next);
      if (checkpoints() && o_.reentrant && hidden.needs_grad()) arguments_.push_back(std::move(given));
    }
    if (!runs_[r].feeds_layers) continue;
    enter(StationPlace::deepstack, static_cast<int>(first_run_ + r));
    g_.prefix = "visual.deepstack.";
    names.features.push_back(merged(hidden, deepstack_[names.features.size()], true));
  }
  g_.prefix.clear();
  return hidden;
}

/// Norm, two matrices with GELU between; merge^2 patches are one row.
Tensor VisionTower::merged(const Tensor& hidden, const Merger& w, bool merged_norm) {
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
Tensor VisionTower::features(VisionNames& names) {
  enter(StationPlace::vision);
  g_.prefix = "visual.";
  const Tensor pixels = cast_pixels_ ? cast_pixels_ : ops::to(g_, pixels_, kernels_.parameters, "pixels");
  if (learned_positions(t_)) {
    taps_ = g_.make("pos_embed.indices", {patches_, Dim(4)}, DType::int64, Category::buffers);
    tap_weights_ = g_.make("pos_embed.weights", {patches_, Dim(4), Dim(1)}, DType::fp32, Category::buffers);
  }
  const Tensor positions = g_.make("position_ids", {patches_, Dim(2)}, DType::int64, Category::buffers);
  Tensor hidden = embed_patches(pixels);
  if (learned_positions(t_)) {
    Tensor sum = with_positions(hidden);
    hidden = std::move(sum);
  }
  if (t_.window > 0) {
    Tensor by_window = permuted(hidden, hidden.shape, "by_window");
    hidden = std::move(by_window);
  }
  const Table table = tables();
  hidden = run_blocks(std::move(hidden), table, names);
  enter(StationPlace::merge);
  g_.prefix = "visual.merger.";
  Tensor out = merged(hidden, merger_, false);
  for (Tensor* one : {&taps_, &tap_weights_, &position_rows_}) one->reset();
  if (t_.window > 0) {
    Tensor in_order = permuted(out, out.shape, "in_order");
    out = std::move(in_order);
  }
  g_.prefix.clear();
  names.last_hidden = std::move(hidden);
  return out;
}

/// Features split by image and joined again: a copy, and a cat of the gradients.
Tensor VisionTower::joined_images(const Tensor& features, const std::string& name) {
  const Shape of_image{Dim(image_tokens(t_, pass_)), Dim(t_.out_hidden)};
  std::vector<Tensor> parts = ops::split(g_, features, std::vector<Shape>(static_cast<std::size_t>(pass_.images), of_image));
  return ops::cat(g_, std::move(parts), features.shape, name);
}

void VisionTower::merge(Tensor& embeds, VisionNames& names) {
  names.pooled = features(names);
  enter(StationPlace::merge);
  names.embeds = joined_images(names.pooled, "image_embeds");
  names.image_mask = g_.make("image_mask", {B, S}, DType::boolean, Category::buffers);
  names.video_mask = g_.make("video_mask", {B, S}, DType::boolean, Category::buffers);
  Tensor joint = vision_ops::masked_scatter(g_, embeds, names.image_mask, names.embeds, o_.kernels.kernel_internals);
  embeds = std::move(joint);
  for (const Tensor& one : names.features) names.deepstack.push_back(joined_images(one, "deepstack_embeds"));
  if (pass_.by_axis) names.positions = g_.make("position_ids", {Dim(3), B, S}, DType::int64, Category::inputs);
}

}  // namespace oomplan
