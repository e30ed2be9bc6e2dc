// Settings of adapters under FSDP1, and of casts around a quantised base, that do not go together.
#pragma once
#include <vector>

#include <oomplan/job.hpp>

#include "job/knob_problem.hpp"

namespace oomplan {

std::vector<KnobProblem> unit_problems(const Trainer&, EngineKind);

}  // namespace oomplan
