// What of training beside a vision tower is not described.
#pragma once
#include <vector>

#include <oomplan/job.hpp>

#include "job/knob_problem.hpp"

namespace oomplan {

/// Nothing for a model without images. A model whose architecture is not known yet is judged by its knobs alone.
std::vector<KnobProblem> vision_problems(const Role&);

}  // namespace oomplan
