// DeepSpeed's configuration as Transformers hands it on: "auto" filled (transformers/integrations/deepspeed.py, 5.24), or what
// accelerate makes of its own few keys (accelerate/utils/dataclasses.py: DeepSpeedPlugin, 1.15).
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "frontends/transformers/engine.hpp"

namespace oomplan::transformers {

/// A setting of ours from a key of the file.
struct ZeroSetting {
  std::string knob, value, path;
};
struct Zero {
  std::int64_t stage = 0;
  std::string stage_path;
  std::string format;     ///< of parameters: "bf16", "fp16", or "fp32" without either
  std::string optimizer;  ///< its own: "AdamW"; "": the trainer's
  bool offloads_optimizer = false;
  std::vector<ZeroSetting> settings;
  std::vector<Problem> problems;  ///< what Transformers or DeepSpeed stop at, and what is not supported
};
/// `hidden`: hidden_size of the model; 0: not known, then "auto" is left to DeepSpeed's own default with a problem.
Zero zero_of(const HfText&, const Engine&, std::int64_t hidden);

}  // namespace oomplan::transformers
