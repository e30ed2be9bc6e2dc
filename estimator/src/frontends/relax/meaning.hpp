// What is Relax's own in the meaning of a command: modes, roles that are services of their own, adapters.
#pragma once
#include "frontends/slime/meaning.hpp"

namespace oomplan::relax {

/// Roles and their GPUs (relax/core/registry.py: process_role; relax/core/controller.py: register_all_serve).
void share(slime::SlimeText&, slime::SlimeMeaning&);
/// Facts that are told otherwise than slime's, or beside them.
void tell(slime::SlimeText&, slime::SlimeMeaning&);

}  // namespace oomplan::relax
