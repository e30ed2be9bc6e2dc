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
  bool casts_inputs = false;  ///< FSDP: fp32 arguments of the model are cast to the compute dtype
  bool casts_tables = false;  ///< FSDP2: those of a block too
  bool joins_itself =
      false;                ///< the framework's own forward pass joins images and text (verl): what only leads there has no name
  bool until_5_10 = false;  ///< transformers' code up to 5.10, which verl installs: tables of rotary positions, checkpoints
  bool narrow_buffers = false;  ///< those of the tower are 16 bits wide (Megatron's Float16Module)
  bool casts_back = false;      ///< verl under FSDP1: to what the tower says that it is of, the format of its sharded parameters
  bool eager = false;    ///< the tower's attention is the eager one, whatever the language model's is (verl 0.7 with Ulysses)
  bool made_up = false;  ///< no image comes, and the framework sends one of 4 x 4 patches through the tower instead (verl)
  bool blocks_in_root = false;  ///< FSDP1: the policy names layers of the language model alone (accelerate's, under Oumi)
  bool in_whole_units =
      false;  ///< FSDP1 with use_orig_params: what is frozen beside trained parameters of a unit asks for gradients
  bool operator==(const VisionPass&) const = default;

  /// Features of inner blocks reach layers of the language model.
  bool has_features() const { return images > 0 && !made_up; }
  std::int64_t patches() const { return images * rows * columns; }
};

/// Of a trainer's knobs; empty without a tower. Images are made multiples of a merged patch, as the processors
/// do (transformers 5.23, models/qwen2_vl/image_processing_qwen2_vl.py: smart_resize, within its limits).
VisionPass vision_pass(const Trainer&, EngineKind, const Architecture&);

/// Qwen2-VL's, Qwen2.5-VL's, Qwen3-VL's or Qwen3.5's.
bool is_qwen_tower(const Tower&);
/// Why this tower cannot be trained; "" when it can.
std::string unsupported_tower(const Tower&);
/// Pixels of other images than the micro-batch's that lie on the device while a phase runs: the patches of one in fp32, as the
/// processor makes them.
Bytes held_pixels(const Trainer&, EngineKind, const Architecture&);
/// Products of attention that a block of the tower makes where no kernel takes all windows and images at once.
std::int64_t attention_parts(const Tower&, const VisionPass&);
/// Tokens of the language model that an image takes the place of.
std::int64_t image_tokens(const Tower&, const VisionPass&);

}  // namespace oomplan
