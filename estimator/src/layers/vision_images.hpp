// Towers that see images of one size, each by itself: SigLIP as Gemma 3 has it, and InternVL's, whose images are tiles. CLIP is
// made of this one.
//
// After transformers 5.23, models/{siglip,gemma3,internvl}/modeling_*.py, line by line.
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

 protected:
  struct Block {
    NormLeaf norm1, norm2;
    MatrixLeaf q, k, v, out, fc1, fc2;
    int scale1 = -1, scale2 = -1;  ///< of what the halves of InternVL's blocks return
  };
  void declare_front() override;
  void declare_block() override;
  void declare_last() override;
  void declare_merger() override;
  Eager::Function block(std::size_t run, std::size_t number, const Tensor& hidden) override;
  /// Between a block's two matrices.
  virtual Tensor activation(Tensor x);

  const bool scales_;  ///< InternVL
  const std::int64_t patches_of_image_ = pass_.rows * pass_.columns;
  const Dim images_{pass_.images}, tokens_, rows_;
  NormLeaf post_norm_;
  int class_token_ = -1;
  MatrixLeaf projector1_, projector2_;

 private:
  Tensor embeddings(const Tensor& images);
  Tensor attention(const Block& w, const Tensor& x, Tensor& weights);
  Tensor run_block(const Block& w, const Tensor& x);
  Tensor run_scaled_block(const Block& w, const Tensor& x);
  Tensor mlp(const Block& w, const Tensor& x);
  Tensor with_class_token(Tensor patches);
  Tensor tower(const Tensor& images, VisionNames& names);
  Tensor projected(const Tensor& hidden);
  Tensor shuffled(const Tensor& hidden);
  Tensor projected_by_two(const Tensor& hidden);
  Tensor linear(Tensor x, const MatrixLeaf& w, std::int64_t width, const std::string& name);

  NormLeaf projector_norm_;
  int projection_ = -1;
  std::vector<Block> blocks_;  ///< the simulated ones
};

}  // namespace oomplan
