// Parts of meaning_of: the facts of one role.
#pragma once
#include "frontends/areal/teller.hpp"

namespace oomplan::areal {

/// Of a role on a training engine.
void tell_trainer(Teller&, const BuiltRole&);
/// Of the servers; `actor` is nullptr when nothing is trained.
void tell_rollout(Teller&, const BuiltRole&, const BuiltRole* actor);
/// How weights reach the servers.
void tell_weight_update(Teller&, const BuiltRole& actor);
/// Everything of a configuration of the realhf trainer (0.1.1 to 0.3.0), whose keys are others.
void tell_realhf(Teller&);

}  // namespace oomplan::areal
