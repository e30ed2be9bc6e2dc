// The realhf trainer's files as jobs: settings of a role, and what of it is refused.
#pragma once
#include <vector>

#include "frontends/areal/lora.hpp"

namespace oomplan::areal {

/// Settings of a training role, without its name in front. Its backend is realhf's.
std::vector<LoraSetting> realhf_of_trainer(const Meaning&, const compose::Node& root, const BuiltRole&);

/// What realhf refuses itself, and what is not described, of a role.
std::vector<Problem> realhf_problems(const Meaning&, const compose::Node& root, const BuiltRole&);

}  // namespace oomplan::areal
