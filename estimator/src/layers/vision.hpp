// Vision towers of transformers' models in the simulator: patch embedding, blocks, merger, and how images join the text.
//
// After transformers 5.23, models/{qwen2_vl,qwen2_5_vl,qwen3_vl}/modeling_*.py, line by line.
//
// Legend: P patches of all images, v hidden size of the tower, m merged patches (P / merge^2).
#pragma once
#include <cstdint>
#include <string>
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

/// Why a pass with images cannot be run; "" when it can, or has none.
std::string unsupported_with_images(const PassOptions&);
/// Buffers of the tower's rotary positions: inv_freq and a copy of it, fp32. 0 for towers that are not described.
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

class VisionTower {
 public:
  /// REQUIRES: all outlive this. `stations`: of the run that it is part of.
  VisionTower(Eager& g, const Architecture& a, const PassOptions& o, const std::vector<Station>& stations);
  bool there() const { return pass_.images > 0; }
  /// Layers of the language model behind which features of inner blocks are added.
  std::size_t deepstack_layers() const { return there() ? static_cast<std::size_t>(t_.deepstack) : 0; }
  /// Adds the tower's stations. `first_run`: number of its first run of blocks.
  void plan(std::vector<Station>& stations, std::size_t first_run);
  void declare();
  /// Images and the kinds of tokens come with the batch.
  void enter_inputs();
  /// The model's forward pass is over.
  void leave_forward() { cast_pixels_.reset(); }
  void leave_inputs();
  /// inputs_embeds, rebound to what has the images' features in it.
  void merge(Tensor& embeds, VisionNames& names);

 private:
  struct Block {
    NormLeaf norm1, norm2;
    MatrixLeaf qkv, proj, gate, up, down;  ///< without a gate: up is fc1, down fc2
  };
  struct Merger {
    NormLeaf norm;
    MatrixLeaf fc1, fc2;
  };
  struct Table {
    Tensor cos, sin;
  };
  bool checkpoints() const { return o_.training && o_.recompute != Recompute::none; }
  void enter(StationPlace place, int run = -1, int unit = 0);
  MatrixLeaf matrix(const std::string& name, std::int64_t in, std::int64_t out, bool bias);
  Block declare_block();
  Merger declare_merger(bool merged_norm);
  void train_only(std::size_t from, std::size_t to, bool trains);
  Tensor features(VisionNames& names);
  Tensor embed_patches(const Tensor& pixels);
  void collect_gradient(Tensor& hidden);
  Tensor with_positions(Tensor hidden);
  Table tables();
  Tensor joined(const std::string& name);
  Tensor permuted(Tensor x, Shape shape, const std::string& name);
  Tensor run_blocks(Tensor hidden, const Table& table, VisionNames& names);
  Tensor run_block(const Block& w, const Table& table, const std::vector<std::int64_t>& lengths, const Tensor& x);
  Tensor attention(const Block& w, const Table& table, const std::vector<std::int64_t>& lengths, Tensor x);
  Tensor mlp(const Block& w, Tensor x);
  Tensor merged(const Tensor& hidden, const Merger& w, bool merged_norm);
  Tensor joined_images(const Tensor& features, const std::string& name);
  Tensor linear(Tensor x, const MatrixLeaf& w, Dim rows, Dim width, const std::string& name);
  std::vector<std::int64_t> lengths(bool windowed) const;

  Eager& g_;
  const Architecture& a_;
  const Tower& t_ = a_.tower;
  const PassOptions& o_;
  const std::vector<Station>& stations_;
  const VisionPass& pass_ = o_.kernels.vision;
  KernelOptions kernels_ = o_.kernels;  ///< of the tower: what acts on the language model alone is off
  const std::vector<TowerRun> runs_;
  std::size_t first_run_ = 0;
  const Dim patches_{pass_.patches()};
  const NormCode norm_;
  MatrixLeaf patch_;
  int positions_ = -1;  ///< learned, interpolated for every image
  Merger merger_;
  std::vector<Merger> deepstack_;
  std::vector<Block> blocks_;  ///< the simulated ones
  Tensor pixels_, cast_pixels_, token_types_;
  Tensor taps_, tap_weights_, position_rows_;  ///< names of the tower's forward pass
  std::vector<Table> arguments_;               ///< attributes of reentrant checkpoints, which live as long as the graph
  Tensor input_leaf_, input_gradient_;         ///< of a frozen patch embedding under checkpoints
};

}  // namespace oomplan
