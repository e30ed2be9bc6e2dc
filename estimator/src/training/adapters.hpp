// What a trainer's `lora` is to the simulator.
#pragma once
#include <oomplan/job.hpp>

#include "catalog/architecture.hpp"
#include "layers/decoder.hpp"

namespace oomplan {

/// Targets are names of transformers' modules, matched by peft's rule; otherwise words of another framework's models.
bool names_modules(const Trainer&, const Architecture&);
/// The modules with adapters. Throws InputError. REQUIRES: names_modules.
AdaptedModules modules_of(const Trainer&, EngineKind, const Architecture&);
AdapterOptions adapter_options(const Trainer&, EngineKind, const Architecture&);

}  // namespace oomplan
