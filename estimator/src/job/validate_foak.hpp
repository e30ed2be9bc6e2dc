// What fms-acceleration's fused operators can be combined with.
#pragma once
#include <vector>

#include "job/validate_base.hpp"

namespace oomplan {

/// Everything that is wrong with `foak` of this trainer; empty: nothing, or it is not asked for.
std::vector<BaseProblem> foak_problems(const Trainer&, EngineKind);

}  // namespace oomplan
