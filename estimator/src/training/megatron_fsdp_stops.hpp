// Where in a tape's backward segments Megatron-FSDP's hooks act.
#pragma once
#include <array>
#include <utility>
#include <vector>

#include "layers/tape.hpp"
#include "training/megatron_fsdp_plan.hpp"

namespace oomplan {

struct FsdpStops {
  std::size_t derives = 0;                                    ///< events in front of the segment's own backward pass
  bool computes_again = false;                                ///< in front of it the forward pass is made again
  std::vector<std::pair<std::size_t, FsdpModule>> gradients;  ///< the event that frees a matrix's gradient, and whose it is
};
struct FsdpStopsOfTape {
  std::vector<std::array<FsdpStops, 3>> stations;
  const FsdpStops& of(std::size_t station, Unit unit) const { return stations[station][static_cast<std::size_t>(unit)]; }
};
/// Where layers are computed again as a whole, their forward hooks run once more.
FsdpStopsOfTape fsdp_stops(const Tape&, const MegatronFsdpPlan&);

}  // namespace oomplan
