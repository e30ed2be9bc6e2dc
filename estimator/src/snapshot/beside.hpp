// What a process was predicted to hold, beside what a snapshot of it recorded: block by block, by size.
//
// Names do not match (a record has lines of programs, a prediction tensors), sizes do: what was asked for, rounded up to 512
// bytes. A prediction is a snapshot too (predicted.hpp), of several phases. The one is compared that is most like the record:
// with the most bytes alike, and of several such phases with the fewest left over.
#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "snapshot/history.hpp"

namespace oomplan::snapshot {

/// One process of the predicted job.
struct PredictedRun {
  std::string ranks;  ///< "actor 0-3"
  Snapshot snapshot;  ///< as predicted_snapshot() makes it: the innermost frame of a block is its tensor and phase
};

/// Blocks of one size.
struct SizeRow {
  Bytes bytes = 0;  ///< of each
  std::int64_t predicted = 0, recorded = 0;
  std::string tensor;             ///< the predicted one that has most of them, with its dtype and shape; "" without one
  std::int64_t more_tensors = 0;  ///< other names of this size
  const Frame* place = nullptr;   ///< of most recorded ones; null: none, or not recorded
  std::int64_t more_places = 0;
  Bytes left_over() const { return (predicted > recorded ? predicted - recorded : recorded - predicted) * bytes; }
  Bytes alike() const { return (predicted < recorded ? predicted : recorded) * bytes; }
};

struct Beside {
  std::string ranks, phase;   ///< of the predicted moment
  int device = 0;             ///< of the snapshot
  bool whole_history = true;  ///< the record has a history: its peak is compared, otherwise what lived when it was made
  Peak predicted, recorded;   ///< at the highest of what is allocated
  Bytes alike = 0;            ///< in blocks of the same size on both sides
  Bytes predicted_alone = 0, recorded_alone = 0;
  std::vector<SizeRow> rows;  ///< most left over first, then the largest
};

/// Nothing for a device on which nothing lives. `phase`: the only one to compare with ("actor.forward"); "" for any.
/// REQUIRES: runs. Throws InputError for a phase that none of them has.
std::optional<Beside> beside(const Snapshot& recorded, int device, const std::vector<PredictedRun>&, std::string_view phase = {});

}  // namespace oomplan::snapshot
