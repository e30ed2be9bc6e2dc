// Programs that switch expandable segments while they run (verl: off for weight updates): a history does not record it, but
// shows.
#pragma once
#include <cstddef>
#include <vector>

#include "snapshot/snapshot.hpp"

namespace oomplan::snapshot {

/// What a trace shows of the switch. A segment is taken while they are off; blocks in mapped pages are handed out while they are
/// on. A block of a segment that was there is handed out in both states: on is assumed where it is shown before and behind.
class SegmentSwitch {
 public:
  /// `otherwise`: where the trace shows only one of both, or none.
  SegmentSwitch(const std::vector<Event>& trace, bool otherwise);
  /// How it stands at an event. REQUIRES: called with events in order.
  bool at(std::size_t event) {
    while (next_ + 1 < runs_.size() && runs_[next_].last < event) ++next_;
    return runs_[next_].on;
  }

 private:
  struct Run {
    std::size_t last = 0;  ///< number of the last event that shows it
    bool on = false;
  };
  void shows(std::size_t event, bool on);
  std::vector<Run> runs_;
  std::size_t next_ = 0;
};

}  // namespace oomplan::snapshot
