// Names of the flags that the engines themselves know, so that one which is only not described here is not called mistyped.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <oomplan/job.hpp>

namespace oomplan {

/// Without dashes.
std::vector<std::string> known_flags(EngineKind);
/// Does the engine's own flag of this name take no value? Nothing when the engine has no such flag.
std::optional<bool> known_switch(EngineKind, std::string_view name);

}  // namespace oomplan
