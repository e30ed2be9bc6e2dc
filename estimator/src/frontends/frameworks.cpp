// The frameworks, a row of each, which stands in its own folder.
#include <array>

#include "frontends/framework.hpp"
#include "job/framework_rules.hpp"
#include "job/training_loop.hpp"

namespace oomplan {

std::span<const FrameworkRow> framework_rows() {
  static const std::array<FrameworkRow, 6> rows{torch::framework_row(),   areal::framework_row(), verl::framework_row(),
                                                agilerl::framework_row(), slime::framework_row(), relax::framework_row()};
  return rows;
}

const FrameworkRow& row_of(Framework framework) {
  for (const FrameworkRow& row : framework_rows())
    if (row.framework == framework) return row;
  return framework_rows().front();
}

const TrainingLoop& training_loop(Framework framework) { return row_of(framework).loop; }

TrainingLoop training_loop(Framework framework, EngineKind engine) {
  const FrameworkRow& row = row_of(framework);
  return row.loop_under != nullptr ? row.loop_under(row.loop, engine) : row.loop;
}

std::vector<KnobProblem> framework_problems(const Role& role) {
  const FrameworkRow& row = row_of(role.trainer.framework);
  return row.problems != nullptr ? row.problems(role) : std::vector<KnobProblem>{};
}

void order_passes(Job& job) {
  if (job.kind != JobKind::rl || job.roles.empty()) return;
  if (const auto order = row_of(job.roles.front().trainer.framework).order_passes; order != nullptr) order(job);
}

}  // namespace oomplan
