#include "layers/vision.hpp"

#include <algorithm>
#include <utility>

#include "layers/every_nth.hpp"
#include "layers/model.hpp"
#include "layers/ops.hpp"
#include "layers/vision_clip.hpp"
#include "layers/vision_counted.hpp"
#include "layers/vision_images.hpp"
#include "layers/vision_ops.hpp"
#include "layers/vision_pixtral.hpp"
#include "layers/vision_qwen.hpp"

namespace oomplan {
namespace {

using axis::B, axis::S;

/// peft's "all-linear", or names that end as a target does.
bool is_target(const AdapterOptions& adapters, const std::string& module) {
  if (adapters.targets.empty()) return true;
  return std::any_of(adapters.targets.begin(), adapters.targets.end(),
                     [&](const std::string& target) { return ("." + module).ends_with("." + target); });
}

/// Adapters behind the rotation alone: the first block keeps no tables of positions, which go with the second one then.
std::vector<TowerRun> runs_of(const Tower& t, const PassOptions& o) {
  std::vector<TowerRun> runs = tower_runs(t);
  const AdapterOptions& adapters = o.kernels.adapters;
  if (runs.empty() || adapters.rank == 0 || adapters.spares_tower || is_target(adapters, "attn.qkv") || runs.front().count == 1)
    return runs;
  runs.insert(runs.begin(), {runs.front().windowed, 1});
  --runs[1].count;
  return runs;
}

/// What of the kernels' options is the language model's alone.
KernelOptions of_tower(KernelOptions k) {
  k.several_sequences = k.padding_mask = k.softcap = k.hidden_dropout = k.attention_dropout = k.tiled_mlp = false;
  k.flash_repeats = k.flash_takes_rows = false;
  k.tensor = k.ulysses = 1;
  if (k.vision.eager) k.kernels = Kernels::hf_eager;
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
  if (t.kind == "clip" && t.layers > 1) {  // what the last block gives is not used
    --out.back().count;
    out.push_back({false, 1});
  }
  return out;
}

int first_tower_run(const Architecture& a) {
  return static_cast<int>(first_apart(spaced_runs(a, 1, false), a.tower.deepstack).architecture.runs.size());
}

bool has_front_unit(const Tower& t) { return t.kind == "siglip" || t.kind == "clip" || t.kind == "gemma4"; }

std::string unsupported_with_images(const PassOptions& o) {
  const KernelOptions& k = o.kernels;
  if (k.vision.images == 0) return {};
  if (k.kernels != Kernels::hf_flash && k.kernels != Kernels::hf_sdpa && k.kernels != Kernels::hf_eager)
    return "a vision tower of these kernels is not supported yet";
  if (k.tensor > 1 || (k.ulysses > 1 && !k.vision.joins_itself))
    return "a vision tower whose language model is split is not supported yet";
  if (k.autocast && !k.vision.joins_itself) return "autocast beside this vision tower is not supported yet";
  if (k.liger.any() || k.foak.any()) return "fused modules beside a vision tower are not supported yet";
  const bool plain = k.adapters.kind == AdapterKind::lora && !k.adapters.dora && !k.packed.any();
  if (k.adapters.rank > 0 && (!plain || k.vision.train != TowerTraining::none))
    return "adapters other than LoRA, packed bases or a trained tower beside LoRA are not supported yet";
  const bool spaced = o.recompute == Recompute::full && (o.recompute_every > 1 || k.offload_checkpoints);
  return spaced ? "such checkpoints beside a vision tower are not supported yet" : std::string();
}

Bytes tower_buffers(const Tower& t) {
  if (!unsupported_tower(t).empty() || t.heads == 0) return 0;
  if (is_image_tower(t)) return t.kind == "siglip" || t.kind == "clip" ? 8 * t.positions : 0;
  return 2 * (t.hidden / t.heads / (t.kind == "pixtral" ? 2 : 4)) * 4;
}

std::unique_ptr<VisionTower> make_tower(Eager& g, const Architecture& a, const PassOptions& o,
                                        const std::vector<Station>& stations) {
  if (o.kernels.vision.images == 0 && !o.kernels.vision.idle) return nullptr;
  if (!unsupported_tower(a.tower).empty()) return std::make_unique<CountedTower>(g, a, o, stations);
  if (a.tower.kind == "pixtral") return std::make_unique<PixtralTower>(g, a, o, stations);
  if (a.tower.kind == "clip") return std::make_unique<ClipTower>(g, a, o, stations);
  if (is_image_tower(a.tower)) return std::make_unique<ImageTower>(g, a, o, stations);
  return std::make_unique<QwenTower>(g, a, o, stations);
}

VisionTower::VisionTower(Eager& g, const Architecture& a, const PassOptions& o, const std::vector<Station>& stations)
    : g_(g), a_(a), o_(o), stations_(stations), kernels_(of_tower(o.kernels)), runs_(runs_of(a.tower, o)) {
  if (o.kernels.vision.blocks_in_root) blocks_place_ = StationPlace::tower;
}

void VisionTower::plan(std::vector<Station>& stations, std::size_t first_run) {
  first_run_ = first_run;
  Station s;
  s.place = StationPlace::vision;
  stations.push_back(s);
  if (has_table()) {
    s.place = StationPlace::positions;
    stations.push_back(s);
  }
  for (std::size_t r = 0; r < runs_.size(); ++r) {
    Station blocks;
    blocks.place = blocks_place_;
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
  const AdapterOptions& adapters = o_.kernels.adapters;
  if (adapters.rank > 0 && !adapters.spares_tower && is_target(adapters, name))
    g_.add_low_rank(leaf.weight, adapters.rank, in, out, adapters.dtype);
  if (bias) leaf.bias = g_.parameter(name + ".bias", {out}, o_.kernels.parameters);
  return leaf;
}

void VisionTower::declare_part(bool trains, void (VisionTower::*part)()) {
  const std::size_t begin = g_.leaves.size(), station = static_cast<std::size_t>(g_.scope) / kUnitsPerStation;
  (this->*part)();
  // the root's unit has trained parameters of the language model (torch/distributed/fsdp/_flat_param.py _use_unsharded_views)
  const bool in_root = pass_.blocks_in_root ? o_.kernels.adapters.rank == 0 : stations_[station].place != blocks_place_;
  const bool beside_trained = pass_.in_whole_units && !trains && in_root;
  for (std::size_t i = begin; i < g_.leaves.size(); ++i) {
    g_.leaves[i].trainable = trains || beside_trained;
    g_.leaves[i].passive = beside_trained;
  }
}

void VisionTower::declare() {
  first_leaf_ = g_.leaves.size();
  const bool all = pass_.train == TowerTraining::all, mergers = pass_.train != TowerTraining::none;
  enter(StationPlace::vision);
  g_.prefix = "visual.";
  declare_part(all, &VisionTower::declare_front);
  if (has_table()) {
    enter(StationPlace::positions);
    declare_part(all, &VisionTower::declare_table);
  }
  for (std::size_t r = 0; r < runs_.size(); ++r) {
    const int run = static_cast<int>(first_run_ + r);
    for (int u = 0; u < std::min<std::int64_t>(kSimulatedUnits, runs_[r].count); ++u) {
      enter(blocks_place_, run, u);
      g_.prefix = "visual.block.";
      declare_part(all, &VisionTower::declare_block);
    }
    if (!runs_[r].feeds_layers) continue;
    enter(StationPlace::deepstack, run);
    declare_part(mergers, &VisionTower::declare_inner_merger);
  }
  enter(StationPlace::merge);
  declare_part(all, &VisionTower::declare_last);
  declare_part(mergers, &VisionTower::declare_merger);
  g_.prefix.clear();
  last_leaf_ = g_.leaves.size();
}

void VisionTower::enter_inputs() {
  const Dim tokens = Dim(o_.kernels.ulysses) * S;
  if (pass_.joins_itself) token_types_ = g_.make("position_ids", {Dim(4), B, tokens}, DType::int64, Category::inputs);
  if (pass_.made_up) return;
  if (!pass_.joins_itself && t_.kind != "internvl" && t_.kind != "clip" && t_.kind != "pixtral")
    token_types_ = g_.make("mm_token_type_ids", {B, S}, DType::int64, Category::inputs);
  pixels_ = g_.make("pixel_values", {patches_, pixel_width()}, DType::fp32, Category::inputs);
  if (pass_.joins_itself) {  // verl's batch lies on the host; FSDP brings pixels to the device and casts them
    Tensor brought = std::exchange(pixels_, {});
    cast_pixels_ = ops::to(g_, std::move(brought), kernels_.parameters, "pixel_values.cast");
    return;
  }
  if (pass_.casts_inputs) cast_pixels_ = ops::to(g_, pixels_, kernels_.parameters, "pixel_values.cast");
}

Dim VisionTower::pixel_width() const {
  return Dim(kChannels * std::max<std::int64_t>(1, t_.temporal_patch) * t_.patch * t_.patch);
}

Tensor VisionTower::pixels() {
  if (pass_.made_up) return g_.make("pixels", {patches_, pixel_width()}, kernels_.parameters, Category::buffers);
  if (pass_.casts_back) {
    wide_pixels_ = ops::to(g_, cast_pixels_, DType::fp32, "pixel_values.wide");
    return ops::to(g_, wide_pixels_, kernels_.parameters, "pixels");
  }
  return cast_pixels_ ? cast_pixels_ : ops::to(g_, pixels_, kernels_.parameters, "pixels");
}

void VisionTower::leave_forward() {
  cast_pixels_.reset();
  returned_.reset();
}

void VisionTower::leave_inputs() {
  input_leaf_.reset();
  input_gradient_.reset();
  token_types_.reset();
  pixels_.reset();
}

Tensor VisionTower::run_blocks(Tensor hidden) {
  std::size_t number = 0;
  for (std::size_t r = 0; r < runs_.size(); ++r) {
    const int run = static_cast<int>(first_run_ + r);
    for (int u = 0; u < std::min<std::int64_t>(kSimulatedUnits, runs_[r].count); ++u) {
      enter(blocks_place_, run, u);
      g_.prefix = "visual.block.";
      const Eager::Function body = block(r, number++, hidden);
      Tensor next = checkpoints() && o_.reentrant ? g_.checkpoint_reentrant(hidden, body)
                    : checkpoints()               ? g_.checkpoint(hidden, body)
                                                  : body(hidden);
      hidden = std::move(next);
    }
    if (!runs_[r].feeds_layers) continue;
    enter(StationPlace::deepstack, run);
    merge_inner(hidden);
  }
  g_.prefix.clear();
  return hidden;
}

Tensor VisionTower::masks_and_scatter(const Tensor& embeds, VisionNames& names, bool videos) {
  names.image_mask = g_.make("image_mask", {B, S}, DType::boolean, Category::buffers);
  if (videos) names.video_mask = g_.make("video_mask", {B, S}, DType::boolean, Category::buffers);
  return vision_ops::masked_scatter(g_, embeds, names.image_mask, names.embeds, o_.kernels.kernel_internals);
}

void VisionTower::forget_outputs(VisionNames& names) const {
  if (!pass_.until_5_10) return;
  names.last_hidden.reset();
  names.pooled.reset();
  names.features.clear();
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

}  // namespace oomplan
