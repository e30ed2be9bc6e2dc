// What a framework's own training loop does to a model and its engine, as named fields that engines read.
#pragma once
#include <oomplan/job.hpp>

namespace oomplan {

/// Of plain PyTorch: nothing.
const TrainingLoop& training_loop(Framework);
/// ... to a role of this engine.
TrainingLoop training_loop(Framework, EngineKind);

}  // namespace oomplan
