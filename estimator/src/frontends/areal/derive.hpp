// What AReaL does with what was written.
#pragma once
#include "frontends/derivation.hpp"

namespace oomplan::areal {

/// What Archon sets whatever is configured.
void derive_role(Derivation&, Role&);
void derive_model(Derivation&, Role&);
void derive_update(Derivation&, Role& rollout, Role& actor);

}  // namespace oomplan::areal
