// A search over the settings of a server that has its GPUs to itself.
//
// Axes: tensor, pipeline and expert parallelism and replicas, the memory fraction, the context where the job does not need it,
// requests and tokens of a batch, CUDA graphs, and, where numerics may change, an fp8 cache and weights converted to fp8. Of
// settings that differ only in the fraction the largest one that fits stands for all: more cache never writes fewer tokens.
#pragma once
#include <stop_token>

#include <oomplan/oomplan.hpp>

#include "catalog/catalog.hpp"
#include "search/admit.hpp"

namespace oomplan {

/// Has the job one role, and does it serve?
bool serves_alone(const Job&);

/// Candidates in which all requests that are asked for run at once come first, then those that write most tokens a second
/// (search/serving_rate.hpp), then those that hold most. REQUIRES: serves_alone(job).
Found search_serving(const Job&, const Space&, int keep, const Catalog&, const std::stop_token&, const Admit&);

}  // namespace oomplan
