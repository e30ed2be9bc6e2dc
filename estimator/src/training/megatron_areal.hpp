// What AReaL's Megatron engine does with a job before Megatron sees it: layers of stages, tokens of a micro-batch, chunks of the
// loss.
#pragma once
#include <cstdint>
#include <vector>

#include <oomplan/job.hpp>

#include "catalog/architecture.hpp"
#include "training/megatron_plan.hpp"

namespace oomplan {

/// Layers of every chunk in the model's order: of stage s its chunk c is number c * stages + s. Empty when AReaL leaves it to
/// Megatron. areal/engine/megatron_utils/pipeline_parallel.py, 1.0.4 (areal/utils/mcore/pipeline_parallel.py, 0.5.0): the largest
/// load of a stage is as small as it can be, in parameters as AReaL estimates them.
std::vector<std::int64_t> areal_stage_layers(const Architecture&, const Trainer&);

/// Tokens of a sequence, or of all packed ones.
std::int64_t megatron_tokens(const Trainer&);

/// How AReaL's loss takes the tokens of a micro-batch apart.
struct ArealCut {
  std::int64_t sequences = 1;  ///< that fill it
  std::int64_t least = 1;      ///< ... at least: of the longest
  std::int64_t tokens = 1;     ///< of one of them
  std::int64_t rows = 1;       ///< of a chunk
  std::int64_t chunks = 1;     ///< 0: all rows at once
};
/// Shorter sequences than the longest fill a micro-batch, too. unpad_logits reaches most with three: so many at least.
ArealCut areal_cut(const Trainer&, const MegatronUse&);

/// The engine's forward passes gather the logits of context-parallel ranks (forward_batch: gather_cp_output, 2.0.0 and later).
bool areal_gathers(const Trainer&);

}  // namespace oomplan
