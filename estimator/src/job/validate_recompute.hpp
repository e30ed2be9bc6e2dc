// Which layers are checkpointed, and where their inputs lie.
#pragma once
#include <vector>

#include <oomplan/job.hpp>

#include "job/knob_problem.hpp"

namespace oomplan {

std::vector<KnobProblem> recompute_problems(const Trainer&, EngineKind);

}  // namespace oomplan
