#include "job/vision_pass.hpp"

#include <algorithm>

#include "catalog/architecture.hpp"
#include "catalog/facts.hpp"

namespace oomplan {
namespace {

/// Python's round(n / step) * step, at least one step: halves go to the even one.
std::int64_t nearest_multiple(std::int64_t n, std::int64_t step) {
  std::int64_t times = n / step;
  const std::int64_t twice = 2 * (n % step);
  if (twice > step || (twice == step && times % 2 == 1)) ++times;
  return std::max<std::int64_t>(1, times) * step;
}

std::int64_t side_of_square(std::int64_t n) {
  std::int64_t side = 0;
  while ((side + 1) * (side + 1) <= n) ++side;
  return side;
}

}  // namespace

bool is_qwen_tower(const Tower& t) { return t.kind == "qwen2_vl" || t.kind == "qwen2_5_vl" || t.kind == "qwen3_vl"; }

VisionPass vision_pass(const Trainer& t, EngineKind engine, const Architecture& a) {
  VisionPass out;
  if (a.tower.kind.empty()) return out;
  out.by_axis = a.tower.kind.starts_with("qwen");
  // verl/models/transformers/{qwen2_vl,qwen3_vl,qwen3_5}.py, 0.7 to 0.10; without pixels _get_input_embeds makes an image up
  const bool sharded = engine == EngineKind::fsdp1 || shards_by_fsdp2(engine);
  out.joins_itself = sharded && t.loop.joins_images_itself && is_qwen_tower(a.tower);
  const bool older = !t.transformers_version.empty() && compare_versions(t.transformers_version, "5.11") < 0;
  out.until_5_10 = out.joins_itself || older;  // verl: setup.py of 0.9 and 0.10, transformers<5.11
  out.blocks_in_root = engine == EngineKind::fsdp1 && !t.loop.joins_images_itself;
  out.casts_inputs = sharded && (!out.blocks_in_root || t.storage != t.compute);  // without a policy FSDP1 casts nothing
  out.casts_tables = shards_by_fsdp2(engine);
  out.in_whole_units = engine == EngineKind::fsdp1 && t.use_orig_params;
  // verl/workers/fsdp_workers.py, 0.5 to 0.7: vision_config._attn_implementation
  out.eager = out.joins_itself && t.layout.context > 1 && compare_versions(t.framework_version, "0.8") < 0;
  out.casts_back = out.joins_itself && engine == EngineKind::fsdp1 && !t.use_orig_params && t.storage != t.compute;
  if (t.vision.images == 0 && out.joins_itself) {
    out.images = 1;
    out.rows = out.columns = 4;
    out.made_up = true;
    out.train = t.vision.train;
    return out;
  }
  if (t.vision.images == 0) {
    out.idle = true;
    out.sees_itself = a.tower.kind == "gemma4_unified";  // use_bidirectional_attention: vision, with or without images
    out.train = TowerTraining::none;
    return out;
  }
  if (a.tower.patch == 0 || a.tower.merge == 0) return VisionPass{};
  out.images = t.vision.images * std::max<std::int64_t>(1, t.sequences_per_micro_batch);
  const std::int64_t side = a.tower.patch * a.tower.merge;
  // whatever the images are, these processors make them as large as the table of positions
  if (a.tower.kind == "siglip" || a.tower.kind == "internvl" || a.tower.kind == "clip") {
    out.rows = out.columns = side_of_square(a.tower.positions);
    out.sees_itself = a.tower.kind == "siglip";
  } else if (a.tower.kind == "pixtral") {  // models/pixtral/image_processing_pixtral.py: upwards
    out.rows = (t.vision.height + side - 1) / side * a.tower.merge;
    out.columns = (t.vision.width + side - 1) / side * a.tower.merge;
  } else {
    out.rows = nearest_multiple(t.vision.height, side) / a.tower.patch;
    out.columns = nearest_multiple(t.vision.width, side) / a.tower.patch;
  }
  if (t.vision.fill && t.sequences_per_micro_batch == 0) {
    const std::int64_t fit = t.tokens_per_micro_batch / std::max<std::int64_t>(1, image_tokens(a.tower, out));
    out.images = std::clamp<std::int64_t>(fit, 1, out.images);
  }
  out.train = t.vision.train;
  return out;
}

std::string unsupported_tower(const Tower& t) {
  if (t.kind != "qwen2_vl" && t.kind != "qwen2_5_vl" && t.kind != "qwen3_vl" && t.kind != "siglip" && t.kind != "internvl" &&
      t.kind != "clip" && t.kind != "pixtral")
    return "training of a model with a vision tower ('" + t.kind + "') is not supported yet";
  return {};
}

Bytes held_pixels(const Trainer& t, EngineKind engine, const Architecture& a) {
  const VisionPass pass = vision_pass(t, engine, a);
  if (pass.images == 0 || t.vision.held <= pass.images) return 0;
  constexpr std::int64_t kChannels = 3;
  const std::int64_t numbers = kChannels * std::max<std::int64_t>(1, a.tower.temporal_patch) * a.tower.patch * a.tower.patch;
  return bytes_of((t.vision.held - pass.images) * pass.rows * pass.columns * numbers, DType::fp32);
}

std::int64_t attention_parts(const Tower& t, const VisionPass& pass) {
  if (!is_qwen_tower(t) || t.window == 0) return pass.images;
  const std::int64_t side = std::max<std::int64_t>(1, t.window / t.merge / t.patch);
  const auto windows = [&](std::int64_t patches) { return (patches / t.merge + side - 1) / side; };
  return pass.images * windows(pass.rows) * windows(pass.columns);
}

std::int64_t image_tokens(const Tower& t, const VisionPass& pass) { return pass.rows * pass.columns / (t.merge * t.merge); }

}  // namespace oomplan
