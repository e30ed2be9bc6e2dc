// The towers of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5: patches of all images in one row, rotary positions, a merger of
// patches.
//
// After transformers 5.23, models/{qwen2_vl,qwen2_5_vl,qwen3_vl}/modeling_*.py, line by line.
#pragma once
#include <string>
#include <vector>

#include "layers/vision.hpp"

namespace oomplan {

class QwenTower : public VisionTower {
 public:
  QwenTower(Eager& g, const Architecture& a, const PassOptions& o, const std::vector<Station>& stations);
  void merge(Tensor& embeds, VisionNames& names) override;
  void leave_inputs() override;
  /// get_image_features and the tower's forward pass.
  Tensor features(VisionNames& names);

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
  void declare_front() override;
  bool has_table() const override;
  void declare_table() override;
  void declare_block() override;
  void declare_inner_merger() override;
  void declare_merger() override;
  Eager::Function block(std::size_t run, std::size_t number, const Tensor& hidden) override;
  void merge_inner(const Tensor& hidden) override;
  void merge_in_framework(Tensor& embeds, VisionNames& names);
  Merger new_merger(bool merged_norm);
  Tensor embed_patches(const Tensor& pixels);
  Tensor with_positions(Tensor hidden);
  Table tables();
  Table tables_from_angles();
  bool has_narrow_angles() const;
  Tensor joined(const std::string& name);
  Tensor permuted(Tensor x, Shape shape, const std::string& name);
  Tensor run_block(const Block& w, const Table& table, const std::vector<std::int64_t>& lengths, const Tensor& x);
  Tensor attention(const Block& w, const Table& table, const std::vector<std::int64_t>& lengths, Tensor x);
  Tensor mlp(const Block& w, Tensor x);
  Tensor merged(const Tensor& hidden, const Merger& w, bool merged_norm);
  Tensor joined_images(const Tensor& features, const std::string& name);
  Tensor linear(Tensor x, const MatrixLeaf& w, Dim rows, Dim width, const std::string& name);
  std::vector<std::int64_t> lengths(bool windowed) const;

  const NormCode norm_;
  Merger merger_;
  std::vector<Merger> mergers_;  ///< of deepstack
  std::vector<Block> blocks_;    ///< the simulated ones
  Table table_;
  Tensor taps_, tap_weights_, position_rows_, angles_, both_angles_;  ///< names of the tower's forward pass
  std::vector<Tensor> features_;                                      ///< of inner blocks
  std::vector<Table> arguments_;  ///< attributes of reentrant checkpoints, which live as long as the graph
};

}  // namespace oomplan
