// How people write a number of GPUs and their kind, the same in job files, overrides and options.
#pragma once
#include <cstdint>
#include <optional>
#include <string_view>

namespace oomplan {

struct GpusSaid {
  std::optional<std::int64_t> count;  ///< nullopt: it is not so written
  std::string_view kind;              ///< "" when only the number is said
};
/// "8", "8 x H100-80GB", "8xh100", "8 X h100".
GpusSaid read_gpus(std::string_view text);

}  // namespace oomplan
