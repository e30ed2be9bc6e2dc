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
/// The release of a server that one of verl's installs.
std::string_view pinned_server(std::string_view version, EngineKind);

}  // namespace oomplan::verl
