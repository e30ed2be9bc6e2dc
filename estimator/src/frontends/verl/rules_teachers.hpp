// What verl itself refuses of on-policy distillation.
#pragma once
#include <vector>

#include "frontends/verl/read.hpp"

namespace oomplan::verl {

/// Of a configuration that has it on.
std::vector<Problem> refusals_of_teachers(const VerlText&);

}  // namespace oomplan::verl
