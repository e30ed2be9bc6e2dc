// A framework as the engines see it: what its training loop does, as named fields, and what it refuses.
#pragma once
#include <string_view>
#include <vector>

#include <oomplan/job.hpp>

#include "job/knob_problem.hpp"

namespace oomplan {

struct FrameworkRow {
  Framework framework;
  TrainingLoop loop;
  /// What it refuses of a trainer, or is not described of it; nullptr: nothing.
  std::vector<KnobProblem> (*problems)(const Role&);
  /// The order in which a step's passes run; nullptr: that of the roles.
  void (*order_passes)(Job&) = nullptr;
};

namespace areal {
FrameworkRow framework_row();
}
namespace verl {
FrameworkRow framework_row();
}
namespace agilerl {
FrameworkRow framework_row();
}

/// By the row of the job's framework.
void order_passes(Job&);

}  // namespace oomplan
