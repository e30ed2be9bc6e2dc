// Names of the flags that the engines themselves know, so that one which is only not described here is not called mistyped.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <oomplan/job.hpp>

#include "frontends/servers/serve_flags.hpp"

namespace oomplan {

/// Without dashes.
std::vector<std::string> known_flags(EngineKind);
/// Does the engine's own flag of this name take no value? Nothing when the engine has no such flag.
std::optional<bool> known_switch(EngineKind, std::string_view name);

/// The row of a flag that is described, by any of its spellings; null.
const FlagRow* row_of(EngineKind, std::string_view name);
/// The spelling that is used most.
std::string_view usual_of(const FlagRow&);
/// All of known_flags() and of the described rows, sorted.
std::vector<std::string> names_of(EngineKind);
/// Does the engine's parser take it: as it is spelt, as no-SWITCH, or, behind two dashes, as the beginning of one name only?
bool known_to_parser(EngineKind, const std::string& name, bool two_dashes);

}  // namespace oomplan
