// What verl does with what was written.
#pragma once
#include "frontends/derivation.hpp"

namespace oomplan::verl {

/// A budget that nobody wrote counts the tokens of one GPU (verl/workers/engine/utils.py).
void derive_budget(Derivation&, Role&);
/// Workers share one process (verl/workers/engine_workers.py).
void derive_role(Derivation&, Role&);
void derive_model(Derivation&, Role&);
void derive_update(Derivation&, Role& rollout, Role& actor);

}  // namespace oomplan::verl
