// What torchtune's kernel sets go with.
#pragma once
#include <vector>

#include "job/litgpt_rules.hpp"

namespace oomplan {

/// Empty where the role has neither a kernel set of torchtune nor one of its losses.
std::vector<Clash> torchtune_clashes(const Role&);

}  // namespace oomplan
