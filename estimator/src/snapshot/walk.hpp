// A recorded history, walked forward: the levels after every event, and what lives then.
#pragma once
#include <unordered_map>
#include <utility>
#include <vector>

#include "snapshot/history.hpp"

namespace oomplan::snapshot {

struct LiveBlock {
  Bytes bytes = 0;
  Bytes requested = 0;  ///< 0: not known
  StackId stack = 0;
  bool before = false;  ///< as in LiveRow
};
using Live = std::unordered_map<Bytes, LiveBlock>;  ///< by address
/// Equal blocks as one row, largest in sum first.
std::vector<LiveRow> rows_of(const Live&);

/// REQUIRES: the device has a history. The snapshot and the comparison outlive it.
class Walk {
 public:
  Walk(const Snapshot&, const Start&, const Comparison& replayed, int device);
  void play(std::size_t event);
  Bytes allocated() const { return allocated_; }
  Bytes reserved() const { return reserved_; }
  const Live& live() const { return live_; }

 private:
  Bytes size_of(std::size_t event) const;
  void put(Bytes address, const LiveBlock&);
  void take(Bytes address);

  const std::vector<Event>& trace_;
  const std::vector<Bytes>& sizes_;
  Live live_;
  std::unordered_map<Bytes, std::pair<Bytes, Bytes>> final_;  // size and request
  Bytes allocated_ = 0, reserved_ = 0;
};

}  // namespace oomplan::snapshot
