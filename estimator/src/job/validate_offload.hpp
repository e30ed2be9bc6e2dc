// Which offload of activations goes with which engine, framework and checkpoints.
#pragma once
#include <vector>

#include <oomplan/job.hpp>

#include "job/knob_problem.hpp"

namespace oomplan {

std::vector<KnobProblem> offload_problems(const Trainer&, EngineKind);

}  // namespace oomplan
