// Loops over the sequence in a stretch of the simulator's events: of many turns the first and the last ones were run, and the
// tape says how often what lies between is repeated.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "layers/tape.hpp"

namespace oomplan {

/// An event of the simulator on its way to a tape.
struct RawEvent {
  TapeEvent event;                    ///< `turn`: the simulated one in which its tensor was made; -1: in none
  std::int64_t tensor_turns = 0;      ///< that the loop has in which its tensor was made
  std::int64_t turn = -1, turns = 0;  ///< the simulated turn that runs, of so many real ones; -1: none
  std::size_t number = 0;             ///< among the simulator's events
};

/// Turns that are run of a longer loop: four from its beginning and four from its end. The two in the middle and those beside
/// them must be alike, tensors named from the turn; then all that were not run are.
inline constexpr std::int64_t kSimulatedTurns = 8;

/// What is thrown where they are not.
struct UnlikeTurns {};

/// The events with their loops. `positions`: behind how many of them each of `raw` stands, and their end; kInLoop for what stands
/// inside a loop. `cut_short`: of longer loops kSimulatedTurns were run, not all.
inline constexpr std::size_t kInLoop = static_cast<std::size_t>(-1);
std::vector<TapeEvent> with_loops(const std::vector<RawEvent>& raw, bool cut_short, std::vector<std::size_t>& positions);

}  // namespace oomplan
