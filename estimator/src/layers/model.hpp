// A whole causal language model of transformers in the simulator: embedding, layers, head, loss, and its backward pass.
#pragma once
#include <vector>

#include "layers/tape.hpp"

namespace oomplan {

/// Scopes of the simulator: station * kUnitsPerStation + unit.
inline constexpr int kUnitsPerStation = 8;
/// Units of a run that are simulated at most: first, two inner ones that are compared, last.
inline constexpr int kSimulatedUnits = 4;

struct ModelRun {
  std::vector<Station> stations;  ///< places, counts and simulated units; segments are still empty
  std::size_t leaving = 0;        ///< events at the end of the forward pass that are Tape::leaving's
};

/// Runs one pass. At most four units of each run are simulated. Throws InputError for what no kernel set describes.
ModelRun run_model(Eager& g, const Architecture&, const PassOptions&);

}  // namespace oomplan
