// What a base in 8 bits (LLM.int8) can be combined with.
#pragma once
#include <vector>

#include "job/validate_base.hpp"

namespace oomplan {

/// Adds what is wrong with the 8-bit base, or with the settings of one where the base is another.
void check_int8(const Trainer&, EngineKind, std::vector<BaseProblem>& out);

}  // namespace oomplan
