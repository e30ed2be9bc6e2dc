// What a search may change of a job on Megatron: all settings that Megatron accepts together.
//
// The rules are Megatron's own (megatron/training/arguments.py, megatron/core/transformer/transformer_config.py,
// megatron/core/parallel_state.py, megatron/core/pipeline_parallel/schedules.py, 0.16.1), with the reason beside each in the
// source. Legend: W GPUs, t tensor, p pipeline, c context, e expert, u expert tensor, d data ranks; v chunks of a stage.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include <oomplan/oomplan.hpp>

#include "catalog/architecture.hpp"

namespace oomplan {

/// How layers are dealt to stages and chunks.
struct MegatronSplit {
  std::int64_t pipeline = 1, chunks = 1;
  std::int64_t first = 0, last = 0;  ///< layers of the first and last stage; 0: as the others
  bool operator==(const MegatronSplit&) const = default;
};
/// Ranks of one stage.
struct MegatronRanks {
  std::int64_t tensor = 1, context = 1, expert = 1, expert_tensor = 1;
  bool sequence_parallel = false;
  bool operator==(const MegatronRanks&) const = default;
};
struct MegatronRecompute {
  Recompute what = Recompute::none;
  RecomputeMethod method = RecomputeMethod::uniform;
  std::int64_t layers = 1;
  std::vector<std::string> modules;
  bool operator==(const MegatronRecompute&) const = default;
};

/// The axes, each by itself: a point is one of each, on the data ranks that are left.
struct MegatronAxes {
  std::vector<MegatronSplit> splits;
  std::vector<MegatronRanks> ranks;
  std::vector<MegatronRecompute> recompute;
};
/// What the model, the effects and the fixed keys allow. The job's own values are always among them.
MegatronAxes megatron_axes(const Job&, const Role&, const Space&);

/// Sequences of a whole step, which all points have in common.
struct MegatronBatch {
  std::int64_t sequences = 1, micro_batch = 1;
  std::int64_t data = 0;  ///< data ranks that stay, as the job states micro-batches of a rank; 0: what the GPUs give
  std::int64_t tokens = 0, budget = 0;  ///< where micro-batches are filled with sequences: of a step, and of a micro-batch
};
MegatronBatch megatron_batch(const Job&, const Role&, const Space&);
/// Data ranks of a stage, or 0 where the two do not fill the GPUs or the batch does not divide.
std::int64_t megatron_data(const MegatronSplit&, const MegatronRanks&, std::int64_t gpus, const MegatronBatch&);
/// Of a data rank and step.
std::int64_t micro_batches_of(const MegatronBatch&, std::int64_t data);
/// Writes a point into the settings of a role. REQUIRES: megatron_data() > 0.
void put_megatron(const MegatronSplit&, const MegatronRanks&, const MegatronRecompute&, std::int64_t data, const MegatronBatch&,
                  Trainer&);

}  // namespace oomplan
