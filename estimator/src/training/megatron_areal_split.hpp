// How AReaL deals a model's layers out to the stages of Megatron's pipeline.
#pragma once
#include <cstdint>
#include <vector>

#include <oomplan/job.hpp>

#include "catalog/architecture.hpp"

namespace oomplan {

/// Layers of every chunk in the model's order: of stage s its chunk c is number c * stages + s. Empty when AReaL leaves it to
/// Megatron. areal/engine/megatron_utils/pipeline_parallel.py, 1.0.4 (areal/utils/mcore/pipeline_parallel.py, 0.5.0): the largest
/// load of a stage is as small as it can be, in parameters as AReaL estimates them.
std::vector<std::int64_t> areal_stage_layers(const Architecture&, const Trainer&);

}  // namespace oomplan
