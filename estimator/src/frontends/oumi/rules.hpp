// What Oumi itself refuses of a configuration (src/oumi/core/configs: training_config.py and the classes' own __post_init__).
#pragma once
#include <vector>

#include "frontends/oumi/meaning.hpp"
#include "frontends/oumi/read.hpp"

namespace oomplan::oumi {

std::vector<Problem> refusals_of(const OumiText&, const OumiMeaning&);

}  // namespace oomplan::oumi
