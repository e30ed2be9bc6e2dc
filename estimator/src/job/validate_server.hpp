// What a server's settings ask of the model and of one another.
#pragma once
#include <vector>

#include <oomplan/job.hpp>

#include "catalog/gpus.hpp"
#include "job/knob_problem.hpp"

namespace oomplan {

/// REQUIRES: role.serves().
std::vector<KnobProblem> server_problems(const Role&, const Gpu&);

}  // namespace oomplan
