// Names of formats that PyTorch and Oumi know (src/oumi/utils/torch_utils.py get_torch_dtype).
#pragma once
#include <string>
#include <string_view>

namespace oomplan::oumi {

/// "bf16", "fp16" or "fp32"; "": of no parameters that train.
inline std::string format_named(std::string_view name) {
  return std::string(name == "bfloat16" || name == "bf16"                    ? "bf16"
                     : name == "float16" || name == "f16" || name == "half"  ? "fp16"
                     : name == "float32" || name == "f32" || name == "float" ? "fp32"
                                                                             : "");
}

}  // namespace oomplan::oumi
