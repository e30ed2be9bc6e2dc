// Megatron's arguments as settings of a role on engine megatron. The shared way in of all front ends above Megatron.
#pragma once
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "frontends/assemble.hpp"
#include "frontends/megatron/run.hpp"

namespace oomplan::megatron {

struct RoleSettings {
  std::vector<Setting> settings;             ///< "trainer.layout", ... each with the flag as its place
  std::map<std::string, std::string> flags;  ///< of our key the flag that says it, as it was written
};
/// Does the engine have the setting? What it has no setting for is refused as not supported yet.
bool engine_has(std::string_view knob);
/// Is there an auxiliary loss that balances the experts?
bool balances(const Arguments&);
/// REQUIRES: check() and refuse_unsupported() found nothing. `role`: "trainer".
RoleSettings settings_of(const Arguments&, const Run&, std::string_view role, const Complaints&);

}  // namespace oomplan::megatron
