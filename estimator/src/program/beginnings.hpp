// What replays of the same programs on devices of different sizes have in common, kept: runs that stand somewhere on their way.
//
// A run goes one way on all devices that hold what it was granted and are smaller than what it was refused. While the sizes that
// are still asked for draw together, more of the way is the same for all of them.
#pragma once
#include <cstddef>
#include <limits>
#include <memory>
#include <vector>

#include "program/shared_run.hpp"

namespace oomplan {

class Beginnings {
 public:
  /// Sizes are asked for that lie above `low` and are at most `high`. What serves none of them is forgotten.
  void narrow(Bytes low, Bytes high);
  /// The furthest run that stands where the run on this device would come by; nullptr: there is none.
  const SharedRun* of(Bytes device_limit) const;
  /// Keeps a copy of the run where it stands, unless the last one is not far behind: a copy costs about what playing an event
  /// costs, for every block in the books. REQUIRES: the programs outlive this.
  void look(const SharedRun&);
  /// A run starts, here or where of() stands.
  void start(const SharedRun&);

 private:
  void forget();
  bool too_many() const;
  std::vector<std::unique_ptr<SharedRun>> kept_;
  Bytes low_ = -1, high_ = std::numeric_limits<Bytes>::max();
  std::int64_t last_ = 0;  // events played where the run was kept, or started
};

}  // namespace oomplan
