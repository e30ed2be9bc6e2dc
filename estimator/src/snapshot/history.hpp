// What a device of a snapshot held: now, and at the two peaks of its recorded history (of what is allocated, of what is
// reserved).
//
// Allocated counts blocks. The file states their sizes where they still live; elsewhere they are what the allocator's replay
// gives the request, or, where nothing can be replayed, the request rounded up to 512 bytes (the rest of at most 1 MiB that stays
// with a block of an ordinary segment is then missing).
#pragma once
#include <vector>

#include "snapshot/recorded.hpp"
#include "snapshot/snapshot.hpp"
#include "snapshot/start.hpp"

namespace oomplan::snapshot {

/// Blocks of one size that came from one place.
struct LiveRow {
  Bytes bytes = 0;  ///< of each
  std::int64_t count = 0;
  StackId stack = 0;
  bool before = false;  ///< allocated before the first recorded event, and freed since: nothing says where
  Bytes requested = 0;  ///< as asked for; 0: not known
  Bytes total() const { return bytes * count; }
};
struct Peak {
  Bytes allocated = 0, reserved = 0;
  std::int64_t event = -1;  ///< index in the trace; -1: before the first event
};
struct OutOfMemory {
  std::int64_t event = 0;
  Bytes requested = 0;  ///< rounded to the block's size
  Bytes free = 0;       ///< what the device had left
  Bytes allocated = 0, reserved = 0;
  StackId stack = 0;
  Bytes limit() const { return reserved + free; }  ///< all that this process could have
};

struct Now {
  Bytes allocated = 0, reserved = 0;
  Bytes requested = 0;       ///< of what is allocated
  Bytes pending = 0;         ///< freed, still used by another stream
  Bytes free = 0;            ///< reserved, neither allocated nor pending
  Bytes releasable = 0;      ///< in segments that are wholly free: empty_cache() gives them back
  Bytes inactive_split = 0;  ///< free beside blocks that are in use
  Bytes largest_free = 0;
  std::int64_t segments = 0, expandable_segments = 0, small_segments = 0, blocks = 0;
};

struct DeviceHistory {
  int device = 0;
  Now now;
  std::int64_t events = 0;  ///< 0: no history
  std::int64_t unmatched = 0;
  std::int64_t first_time = 0, last_time = 0;  ///< microseconds since 1970
  Peak allocated_peak, reserved_peak;
  std::vector<LiveRow> live;  ///< at the allocated peak, or now when there is no history; largest in sum first
  std::vector<OutOfMemory> ooms;
  Comparison comparison;
};
DeviceHistory history_of(const Snapshot&, int device);

/// Live rows of one size and one telling frame, as reports show them.
struct LivePlace {
  Bytes bytes = 0;  ///< of each
  std::int64_t count = 0;
  const Frame* frame = nullptr;  ///< null: not recorded
  bool before = false;           ///< as in LiveRow
  Bytes total() const { return bytes * count; }
};
/// Largest in sum first.
std::vector<LivePlace> places_of(const Snapshot&, const std::vector<LiveRow>&);

/// The frame to show of a stack: the innermost line of Python outside of torch's own folder; the innermost of Python; the
/// innermost that has a name. Null without frames.
const Frame* telling_frame(const Snapshot&, StackId);

}  // namespace oomplan::snapshot
