// Training in 8 bits: which models, which engines, what FSDP2 gathers.
#pragma once
#include <vector>

#include <oomplan/job.hpp>

#include "job/knob_problem.hpp"

namespace oomplan {

std::vector<KnobProblem> float8_problems(const Trainer&, EngineKind);

}  // namespace oomplan
