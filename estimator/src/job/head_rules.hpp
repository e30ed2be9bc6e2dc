// What TRL's losses, a reference beside them and a reward model's head can be combined with.
#pragma once
#include <vector>

#include "job/litgpt_rules.hpp"

namespace oomplan {

/// Every knob that does not go with the head of this trainer.
std::vector<Clash> head_clashes(const Role&);

}  // namespace oomplan
