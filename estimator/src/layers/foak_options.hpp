// Which fused operators of foundation-model-stack/fms-acceleration (plugins/fused-ops-and-kernels) a model runs with.
#pragma once

namespace oomplan {

struct FoakOptions {
  bool rope = false, rms_norm = false;
  bool lora = false;  ///< adapters of attention and a quantised base in functions of their own
  bool any() const { return rope || rms_norm || lora; }
  bool operator==(const FoakOptions&) const = default;
};

}  // namespace oomplan
