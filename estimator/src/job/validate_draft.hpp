// What a draft of another checkpoint asks of a server: validate_draft.cpp.
#pragma once
#include <vector>

#include <oomplan/job.hpp>

#include "job/knob_problem.hpp"

namespace oomplan {

/// REQUIRES: role.serves().
std::vector<KnobProblem> draft_problems(const Role&);

}  // namespace oomplan
