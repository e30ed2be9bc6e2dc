// A recorded history, played again through the caching allocator (program/allocator.hpp) and compared with what was recorded.
//
// Taken from the record: the requests, the moment at which a freed block is free, the settings, and where new segments lie.
// Predicted: the block of every request and what is taken from and given back to the driver. Segments that were given back right
// before a request are played as empty_cache(): a retry gives back the same.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "snapshot/snapshot.hpp"
#include "snapshot/start.hpp"

namespace oomplan::snapshot {

struct Comparison {
  std::string not_possible;                     ///< why nothing was played; empty otherwise
  Bytes reserved_peak = 0, allocated_peak = 0;  ///< replayed; allocated in whole blocks
  Bytes recorded_reserved_peak = 0;
  std::int64_t allocations = 0, placed_equal = 0;  ///< of which at the recorded address
  std::int64_t segment_events = 0, recorded_segment_events = 0;
  std::int64_t ooms = 0;               ///< requests that ran out in the replay too
  std::int64_t first_difference = -1;  ///< index of the event, -1: none
  std::string difference;              ///< what was recorded and what was replayed
  std::vector<Bytes> sizes;            ///< by event: the block of an allocation; 0 for others
};

/// The settings that the file states, or that its segments show. `unread` gets a text that could not be understood.
AllocatorSettings settings_of(const Snapshot&, std::string* unread = nullptr);
Comparison play_again(const Snapshot&, int device, const Start&);

}  // namespace oomplan::snapshot
