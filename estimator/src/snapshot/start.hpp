// What a device held before the first recorded event. A snapshot does not say it: the events are undone from the final state,
// newest first. An allocation takes its block away, a completed free puts one back, segments likewise.
//
// The size of a block that lived then and was freed later is not in the file. It follows from the rule for splitting: in an
// ordinary large segment a rest of at most 1 MiB stays with its block, so such a gap belongs to it; where the gap is larger, an
// allocation that starts within 1 MiB behind the rounded request, while the block lives, marks its end.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "snapshot/snapshot.hpp"

namespace oomplan::snapshot {

struct StartBlock {
  Bytes size = 0;  ///< 0: not known, see above; fill_sizes() leaves none
  Bytes requested = 0;
  StackId stack = 0;
};
struct StartSegment {
  Bytes bytes = 0;
  std::int64_t stream = 0;
  bool small = false;
  std::pair<std::int64_t, std::int64_t> pool{0, 0};
};
struct Start {
  std::map<Bytes, StartSegment> segments;  ///< by address; expandable ones are left out
  std::map<Bytes, StartBlock> blocks;      ///< active or pending, by address
  bool expandable = false;                 ///< there are expandable segments, at some time
  Bytes reserved = 0;                      ///< also of expandable segments
  std::int64_t unmatched = 0;  ///< allocations that are neither freed nor in the final state: the trace ends too early
};
/// Every block gets a size.
Start start_of(const Snapshot&, int device);

/// The size of a block for a request, without roundup_power2_divisions.
constexpr Bytes rounded_request(Bytes bytes) { return bytes <= 512 ? 512 : round_up(bytes, 512); }

}  // namespace oomplan::snapshot
