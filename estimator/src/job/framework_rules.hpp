// What a framework itself refuses of a trainer, and what is not described under it. Its own folder says it (frontends/NAME).
#pragma once
#include <vector>

#include <oomplan/job.hpp>

#include "job/knob_problem.hpp"

namespace oomplan {

/// REQUIRES: the role trains.
std::vector<KnobProblem> framework_problems(const Role&);

}  // namespace oomplan
