// search() of a job on Megatron: every configuration is bounded, the fastest that pass are estimated.
#pragma once
#include "search/megatron_bound.hpp"

namespace oomplan {

/// A point that passes its bound, by index into the axes.
struct MegatronCandidate {
  std::size_t split = 0, ranks = 0, recompute = 0;
  std::int64_t data = 1;
  Bytes least = 0;
  double seconds = 0;
};
struct MegatronJudged {
  std::int64_t points = 0;                    ///< that Megatron's rules allow and the engine describes
  std::vector<MegatronCandidate> candidates;  ///< that the bound lets through, fastest first
  MegatronCandidate smallest;                 ///< the one that needs least of all points
};
/// Bounds all points of the axes on so many GPUs.
MegatronJudged judge_megatron(const MegatronAxes&, MegatronBound&, std::int64_t gpus, const MegatronBatch&, Bytes usable,
                              const std::stop_token&);

/// Throws InputError for what no search over Megatron describes.
void refuse_what_is_not_searched(const Role&, const Space&);

/// REQUIRES: the job's only role runs on engine megatron. Throws InputError for what cannot be searched.
Found search_megatron(const Job&, const Space&, int keep, const Catalog&, const std::stop_token&);

}  // namespace oomplan
