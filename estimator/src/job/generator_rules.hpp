// What a generator, transformers' model by itself, takes.
#pragma once
#include <vector>

#include <oomplan/job.hpp>

#include "job/knob_problem.hpp"

namespace oomplan {

/// Of any role that trains or computes passes: heads that are a generator's, and a generator's settings.
std::vector<KnobProblem> generator_problems(const Job&, const Role&);

}  // namespace oomplan
