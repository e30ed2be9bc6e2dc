// Kinds of adapters other than LoRA: what each goes with.
#pragma once
#include <vector>

#include <oomplan/job.hpp>

#include "job/knob_problem.hpp"

namespace oomplan {

std::vector<KnobProblem> adapter_problems(const Trainer&, EngineKind);

}  // namespace oomplan
