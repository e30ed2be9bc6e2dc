// Settings of adapters under FSDP1, and of casts around a quantised base, that do not go together; models that do not go into
// units.
#pragma once
#include <vector>

#include <oomplan/job.hpp>

#include "job/knob_problem.hpp"

namespace oomplan {

std::vector<KnobProblem> unit_problems(const Trainer&, EngineKind);
/// Parameters of a model that one unit cannot hold together.
std::vector<KnobProblem> mixed_unit_problems(const Role&);

}  // namespace oomplan
