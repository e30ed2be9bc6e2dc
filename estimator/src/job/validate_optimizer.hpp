// Which optimizers work on what an engine makes of parameters, and which gradients can stay.
#pragma once
#include <vector>

#include <oomplan/job.hpp>

#include "job/knob_problem.hpp"

namespace oomplan {

std::vector<KnobProblem> optimizer_problems(const Trainer&, EngineKind);

}  // namespace oomplan
