// Facts as JSON.
#pragma once
#include <string>

#include "frontends/areal/areal.hpp"

namespace oomplan::areal {

/// Nested as the keys are; every leaf {"v": value, "o": who told it, "w": where}. With the release, the configuration class, what
/// is refused and what was assumed.
std::string facts_json(const ArealText&);

}  // namespace oomplan::areal
