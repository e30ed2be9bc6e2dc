// What of a role's settings Megatron-core refuses, or is not described.
#pragma once
#include <string>
#include <vector>

#include <oomplan/job.hpp>

namespace oomplan {

struct MegatronProblem {
  std::string knob, found, expected, why;
};
/// REQUIRES: the role's engine is megatron.
std::vector<MegatronProblem> megatron_problems(const Job&, const Role&);

}  // namespace oomplan
