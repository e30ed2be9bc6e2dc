// What a quantised base under adapters can be combined with.
#pragma once
#include <string>
#include <vector>

#include <oomplan/job.hpp>

namespace oomplan {

struct BaseProblem {
  std::string knob, found, expected, why;
};
/// Everything that is wrong with the base of this trainer; empty: nothing, or the base is not quantised.
std::vector<BaseProblem> base_problems(const Trainer&, EngineKind);

}  // namespace oomplan
