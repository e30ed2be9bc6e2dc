// Pixtral's tower as Mistral 3 has it: patches of all images in one row, which a mask keeps apart, and a projector that merges
// squares of patches.
//
// After transformers 5.23, models/{pixtral,mistral3}/modeling_*.py, line by line.
#pragma once
#include <string>
#include <vector>

#include "layers/vision.hpp"

namespace oomplan {

class PixtralTower : public VisionTower {
 public:
  using VisionTower::VisionTower;
  void merge(Tensor& embeds, VisionNames& names) override;
  void leave_inputs() override;

 private:
  struct Block {
    NormLeaf norm1, norm2;
    MatrixLeaf q, k, v, o, gate, up, down;
  };
  /// What every block gets beside its input.
  struct Given {
    Tensor cos, sin, mask;
  };
  void declare_front() override;
  void declare_block() override;
  void declare_merger() override;
  Eager::Function block(std::size_t run, std::size_t number, const Tensor& hidden) override;
  std::vector<Shape> of_images(const Shape& image) const;
  Tensor in_one_row(const Tensor& patches);
  Given tables();
  Tensor attention(const Block& w, const Given& given, const Tensor& x, Tensor& weights);
  Tensor run_block(const Block& w, const Given& given, const Tensor& x);
  Tensor tower();
  std::vector<Tensor> squares(const Tensor& features);
  Tensor merged(const Tensor& features);
  Tensor projected(const Tensor& hidden);
  Tensor linear(Tensor x, const MatrixLeaf& w, std::int64_t width, const std::string& name);

  const std::int64_t patches_of_image_ = pass_.rows * pass_.columns;
  const std::int64_t squares_ = pass_.patches() / (t_.merge * t_.merge);
  NormLeaf first_norm_, projector_norm_;
  MatrixLeaf merging_, projector1_, projector2_;
  std::vector<Block> blocks_;  ///< the simulated ones
  Given given_;
  std::vector<Given> arguments_;  ///< attributes of reentrant checkpoints, which live as long as the graph
};

}  // namespace oomplan
