// The images of a micro-batch as a vision tower sees them. A tape belongs to one number of images and one size.
#pragma once
#include <cstdint>
#include <string>

#include <oomplan/job.hpp>

namespace oomplan {

struct Architecture;
struct Tower;

struct VisionPass {
  std::int64_t images = 0;             ///< of the micro-batch; 0: no tower runs
  std::int64_t rows = 0, columns = 0;  ///< patches of an image
  TowerTraining train = TowerTraining::all;
  bool by_axis = false;       ///< the language model's positions have three rows: time, height, width
  bool sees_itself = false;   ///< tokens of an image attend to all of it, which takes masks (Gemma 3)
  bool idle = false;          ///< the model has a tower, and the batches are text alone
  bool casts_inputs = false;  ///< FSDP2: fp32 arguments of the model and of a block are cast to the compute dtype
  bool operator==(const VisionPass&) const = default;

  std::int64_t patches() const { return images * rows * columns; }
};

/// Of a trainer's knobs; empty without a tower. Images are made multiples of a merged patch, as the processors
/// do (transformers 5.23, models/qwen2_vl/image_processing_qwen2_vl.py: smart_resize, within its limits).
VisionPass vision_pass(const Trainer&, EngineKind, const Architecture&);

/// Why this tower cannot be trained; "" when it can.
std::string unsupported_tower(const Tower&);
/// Pixels of other images than the micro-batch's that lie on the device while a phase runs: the patches of one in fp32, as the
/// processor makes them.
Bytes held_pixels(const Trainer&, EngineKind, const Architecture&);
/// Tokens of the language model that an image takes the place of.
std::int64_t image_tokens(const Tower&, const VisionPass&);

}  // namespace oomplan
