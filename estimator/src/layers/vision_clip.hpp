// CLIP's tower as LLaVA 1.5 has it: the output of its last block but one goes on, the last one's goes nowhere.
//
// After transformers 5.23, models/{clip,llava}/modeling_*.py.
#pragma once
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "layers/vision_images.hpp"

namespace oomplan {

class ClipTower : public ImageTower {
 public:
  using ImageTower::ImageTower;
  void merge(Tensor& embeds, VisionNames& names) override;

 private:
  void declare_front() override;
  void declare_block() override;
  void declare_last() override;
  void declare_merger() override;
  Eager::Function block(std::size_t run, std::size_t number, const Tensor& hidden) override;
  Tensor activation(Tensor x) override;
  Tensor embeddings();
  Tensor tower(VisionNames& names);
  Tensor projected(const Tensor& patches);
  void mark_idle(std::size_t begin);
  void retire_idle();

  using Leaves = std::pair<std::size_t, std::size_t>;  ///< numbers from, up to
  NormLeaf first_norm_;
  Tensor selected_;           ///< what goes into the last block
  std::size_t declared_ = 0;  ///< blocks
  std::vector<Leaves> idle_;  ///< leaves that no gradient reaches: of the last block and the norm behind it
};

}  // namespace oomplan
