// A role on Megatron-core, resolved: the plans of its pipeline stages.
#pragma once
#include "estimate/figures.hpp"
#include "estimate/role_run.hpp"

namespace oomplan {

/// The role's settings as this GPU runs them. Throws InputError where Transformer Engine would refuse the GPU.
Trainer megatron_on_gpu(const Role&, const Gpu&);
/// Fills run.megatron. REQUIRES: the role's engine is megatron.
void resolve_megatron(RoleRun& run, const Job&, const Catalog&);
/// training_figures() of one pipeline stage.
TrainingFigures megatron_figures(const TrainingCase&);

}  // namespace oomplan
