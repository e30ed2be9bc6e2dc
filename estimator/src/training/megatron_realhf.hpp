// How realhf deals a model's layers out to stages (realhf/impl/model/nn/real_llm_parallel.py: partition_pipeline_layers, and
// realhf/base/datapack.py: partition_balanced, 0.3.0).
#pragma once
#include <cstdint>
#include <vector>

#include "catalog/architecture.hpp"

namespace oomplan {

/// Layers of every stage; the embedding is with the first ones, the head with the last ones. Empty without a pipeline, and where
/// there are more stages than layers.
std::vector<std::int64_t> realhf_stage_layers(const Architecture&, std::int64_t stages);

}  // namespace oomplan
