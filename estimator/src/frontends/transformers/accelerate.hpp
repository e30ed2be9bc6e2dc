// What stands in front of a script: torchrun, deepspeed, or accelerate launch with its file and flags
// (accelerate/commands/launch.py, 1.15).
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <oomplan/units/errors.hpp>

#include "frontends/compose/node.hpp"

namespace oomplan::transformers {

enum class LauncherKind : std::uint8_t { none, torchrun, deepspeed, accelerate };

struct Launcher {
  LauncherKind kind = LauncherKind::none;
  /// Of accelerate: its file with the flags over it, keys of fsdp_config and deepspeed_config with their prefixes. A map.
  compose::Node settings;
  std::int64_t nodes = 0, per_node = 0, processes = 0;  ///< 0: nobody says
  Place place;                                          ///< of who says how many there are
  std::vector<Problem> problems;
};

/// Is this a flag of accelerate launch, as `trl sft` hands them on?
bool is_accelerate_flag(std::string_view name);
/// `words`: those in front of the script's own arguments. `open`: the text of a file.
Launcher read_launcher(const std::vector<std::string>& words,
                       const std::function<std::optional<std::string>(const std::string&)>& open);

}  // namespace oomplan::transformers
