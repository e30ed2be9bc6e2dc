// From what the simulator did to a tape: for runners other than run_model.
#pragma once
#include <memory>

#include "layers/model.hpp"

namespace oomplan {

/// The events of a run, cut into the stations' segments. Leaves are not taken over.
std::shared_ptr<Tape> build_tape(const Eager&, const ModelRun&);

}  // namespace oomplan
