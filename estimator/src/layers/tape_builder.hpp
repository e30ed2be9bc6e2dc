// From what the simulator did to a tape: for runners other than run_model.
#pragma once
#include <memory>

#include "layers/model.hpp"
#include "layers/tape.hpp"

namespace oomplan {

/// The events of a run, cut into the stations' segments. Leaves are not taken over.
std::shared_ptr<Tape> build_tape(const Eager&, const ModelRun&);
/// make_tape() with every turn of a loop over the sequence run: what a few of them stand for.
std::shared_ptr<const Tape> make_tape_of_all_turns(const Architecture&, const PassOptions&);

}  // namespace oomplan
