// What peft objects to in a role's targets, or what of them is not described: paths are knobs ("lora.targets").
#pragma once
#include <vector>

#include <oomplan/job.hpp>
#include <oomplan/units/errors.hpp>

#include "catalog/architecture.hpp"

namespace oomplan {

std::vector<Problem> target_problems(const Trainer&, EngineKind, const Architecture&);

}  // namespace oomplan
