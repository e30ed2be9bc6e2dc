#include "layers/megatron_hf_tower.hpp"

#include <utility>

#include "layers/model.hpp"

namespace oomplan {
namespace {

/// In bf16, with PyTorch's kernel for attention (_from_config of both towers' classes) and no checkpoints.
PassOptions options_of(const ChunkOptions& o) {
  PassOptions out;
  out.kernels.kernels = Kernels::hf_sdpa;
  out.kernels.parameters = DType::bf16;
  out.kernels.vision = o.vision;
  out.kernels.vision.train = TowerTraining::all;
  out.kernels.vision.narrow_buffers = true;
  out.kernels.vision.until_5_10 = true;  // verl's setup.py, 0.9 and 0.10: transformers<5.11
  out.training = !o.forward_only;
  out.recompute = Recompute::none;
  return out;
}

}  // namespace

HfTower::HfTower(Eager& g, const Architecture& a, const ChunkOptions& o, std::vector<Station>& stations)
    : g_(g), options_(options_of(o)), tower_(g, a, options_, stations) {
  tower_.put_blocks(StationPlace::tower);
  tower_.plan(stations, 0);
  const int scope = std::exchange(g_.scope, 0);
  tower_.declare();
  g_.scope = scope;
  const auto [begin, end] = tower_.leaves();
  for (std::size_t i = begin; i < end; ++i) {
    g_.leaves[i].accumulate = te_weight(g_).grad_fn;
    g_.leaves[i].accumulate->scope = g_.leaves[i].scope;
  }
}

Tensor HfTower::features(const Tensor& pixels) {
  tower_.take_pixels(pixels);
  VisionNames names;
  return tower_.features(names);
}

}  // namespace oomplan
