// Towers that see images of one size, each by itself: SigLIP as Gemma 3 has it.
//
// After transformers 5.23, models/{siglip,gemma3}/modeling_*.py, line by line.
#pragma once
#include <string>
#include <vector>

#include "layers/vision.hpp"

namespace oomplan {

bool is_image_tower(const Tower&);

class ImageTower : public VisionTower {
 public:
  ImageTower(Eager& g, const Architecture& a, const PassOptions& o, const std::vector<Station>& stations);
  void merge(Tensor& embeds, VisionNames& names) override;

 private:
  struct Block {
    NormLeaf norm1, norm2;
    MatrixLeaf q, k, v, out, fc1, fc2;
  };
  void declare_front() override;
  void declare_block() override;
  void declare_last() override;
  void declare_merger() override;
  Eager::Function block(std::size_t run, std::size_t number, const Tensor& hidden) override;
  Tensor embeddings();
  Tensor attention(const Block& w, const Tensor& x, Tensor& weights);
  Tensor run_block(const Block& w, const Tensor& x);
  Tensor tower(VisionNames& names);
  Tensor projected(const Tensor& hidden);
  Tensor linear(Tensor x, const MatrixLeaf& w, std::int64_t width, const std::string& name);

  const Dim images_{pass_.images}, tokens_{pass_.rows * pass_.columns};
  NormLeaf post_norm_, projector_norm_;
  int projection_ = -1;
  std::vector<Block> blocks_;  ///< the simulated ones
};

}  // namespace oomplan
