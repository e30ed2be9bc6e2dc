// What AReaL's Archon goes with.
#pragma once
#include <vector>

#include "job/litgpt_rules.hpp"

namespace oomplan {

/// Empty where the role neither runs Archon nor has its kernel set.
std::vector<Clash> archon_clashes(const Role&);

}  // namespace oomplan
