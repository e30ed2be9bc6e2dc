// Vision towers of transformers' models in the simulator: patch embedding, blocks, projector, and how images join the text.
//
// Legend: P patches of all images, v hidden size of the tower, m merged patches (P / merge^2).
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "layers/tape.hpp"

namespace oomplan {

/// Blocks of a tower that behave alike, in a row.
struct TowerRun {
  bool windowed = false;  ///< attention within windows of an image
  std::int64_t count = 0;
  bool feeds_layers = false;  ///< the last block's output is merged by itself, for a layer of the language model (deepstack)
};
std::vector<TowerRun> tower_runs(const Tower&);
/// Number of the tower's first run of blocks: behind those of the language model, whose first layers stand apart under deepstack.
int first_tower_run(const Architecture&);

/// Patch embedding and positions are an FSDP2 unit of their own (_no_split_modules).
bool has_front_unit(const Tower&);

/// Why a pass with images cannot be run; "" when it can, or has none.
std::string unsupported_with_images(const PassOptions&);
/// Buffers of the tower: of rotary positions inv_freq and a copy of it, fp32; of learned ones their numbers. 0 for towers that
/// are not described.
Bytes tower_buffers(const Tower&);

/// Names of the model around the language model, which go when it returns.
struct VisionNames {
  Tensor last_hidden, pooled, embeds, image_mask, video_mask, positions;
  std::vector<Tensor> features;   ///< of inner blocks, as the tower returns them
  std::vector<Tensor> deepstack;  ///< the same, images joined: what the language model's first layers get
};

/// Parameters of a matrix.
struct MatrixLeaf {
  int weight = -1, bias = -1;
};

/// What all towers have in common; one class for each code of transformers.
class VisionTower {
 public:
  /// REQUIRES: all outlive this. `stations`: of the run that it is part of.
  VisionTower(Eager& g, const Architecture& a, const PassOptions& o, const std::vector<Station>& stations);
  VisionTower(const VisionTower&) = delete;
  VisionTower& operator=(const VisionTower&) = delete;
  virtual ~VisionTower() = default;
  /// Adds the tower's stations. `first_run`: number of its first run of blocks.
  virtual void plan(std::vector<Station>& stations, std::size_t first_run);
  virtual void declare();
  /// The blocks' stations are of this place.
  void put_blocks(StationPlace place) { blocks_place_ = place; }
  /// Somebody else has made them.
  void take_pixels(const Tensor& pixels) { pixels_ = pixels; }
  /// Of leaves: from the tower's first one to behind its last one.
  std::pair<std::size_t, std::size_t> leaves() const { return {first_leaf_, last_leaf_}; }
  /// Images and the kinds of tokens come with the batch.
  void enter_inputs();
  /// The model's forward pass is over.
  void leave_forward();
  virtual void leave_inputs();
  /// inputs_embeds, rebound to what has the images' features in it.
  virtual void merge(Tensor& embeds, VisionNames& names) = 0;

 protected:
  /// Parameters in front of the blocks, of one block, of the merger behind a run, of the projector behind all.
  virtual void declare_front() = 0;
  virtual bool has_table() const { return false; }  ///< of learned positions, apart from the front
  virtual void declare_table() {}
  virtual void declare_block() = 0;
  virtual void declare_inner_merger() {}
  virtual void declare_last() {}  ///< what of the tower itself stands behind the blocks
  virtual void declare_merger() = 0;
  /// The forward pass of a simulated block; asked for where that is run, with what goes in.
  virtual Eager::Function block(std::size_t run, std::size_t number, const Tensor& hidden) = 0;
  /// A run is over whose last block feeds layers of the language model.
  virtual void merge_inner(const Tensor&) {}

  /// accelerate's are around FSDP1's units alone.
  bool checkpoints() const { return o_.training && o_.recompute != Recompute::none && !pass_.blocks_in_root; }
  void enter(StationPlace place, int run = -1, int unit = 0);
  MatrixLeaf matrix(const std::string& name, std::int64_t in, std::int64_t out, bool bias);
  Dim pixel_width() const;
  /// The images as the tower's code gets them, in the compute dtype.
  Tensor pixels();
  void leave_pixels() { wide_pixels_.reset(); }
  void collect_gradient(Tensor& hidden);
  Tensor run_blocks(Tensor hidden);
  Tensor masks_and_scatter(const Tensor& embeds, VisionNames& names, bool videos);
  /// Up to transformers 5.10 a model names the features alone, not what the tower returned.
  void forget_outputs(VisionNames& names) const;

  static constexpr std::int64_t kChannels = 3;
  Eager& g_;
  const Architecture& a_;
  const Tower& t_ = a_.tower;
  const PassOptions& o_;
  const std::vector<Station>& stations_;
  const VisionPass& pass_ = o_.kernels.vision;
  KernelOptions kernels_ = o_.kernels;  ///< of the tower: what acts on the language model alone is off
  const std::vector<TowerRun> runs_;
  const Dim patches_{pass_.patches()};
  MatrixLeaf patch_;
  int positions_ = -1;  ///< table of learned positions
  Tensor returned_;     ///< what the model's output holds beside the logits
  std::size_t first_leaf_ = 0, last_leaf_ = 0;

 private:
  void declare_part(bool trains, void (VisionTower::*part)());
  std::size_t first_run_ = 0;
  StationPlace blocks_place_ = StationPlace::layers;
  Tensor pixels_, cast_pixels_, wide_pixels_;
  Tensor token_types_;                  ///< or the positions that come with the batch
  Tensor input_leaf_, input_gradient_;  ///< of a frozen patch embedding under checkpoints
};

/// nullptr: the model has no tower. Without images only its parameters are asked for (VisionPass::idle).
std::unique_ptr<VisionTower> make_tower(Eager& g, const Architecture& a, const PassOptions& o,
                                        const std::vector<Station>& stations);

}  // namespace oomplan
