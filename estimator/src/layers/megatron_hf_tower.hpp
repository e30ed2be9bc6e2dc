// transformers' own vision tower beside Megatron-core's language model, as mbridge's Qwen3.5 has it: whole on every rank.
#pragma once
#include <memory>
#include <vector>

#include "layers/megatron.hpp"
#include "layers/vision_qwen.hpp"

namespace oomplan {

class HfTower {
 public:
  /// Adds its stations and parameters, whose gradients go as soon as they have been added up. REQUIRES: all outlive this.
  HfTower(Eager& g, const Architecture& a, const ChunkOptions& o, std::vector<Station>& stations);
  /// Of this rank's images.
  Tensor features(const Tensor& pixels);
  /// The model's forward pass is over.
  void leave_forward() {
    tower_.leave_forward();
    tower_.leave_inputs();
  }

 private:
  Eager& g_;
  const PassOptions options_;
  QwenTower tower_;
};

}  // namespace oomplan
