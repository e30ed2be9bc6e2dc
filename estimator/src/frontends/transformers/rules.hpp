// What Transformers, TRL and accelerate themselves refuse of arguments, with their words.
#pragma once
#include <vector>

#include "frontends/transformers/meaning.hpp"

namespace oomplan::transformers {

std::vector<Problem> refusals_of(const HfText&, const HfMeaning&);

}  // namespace oomplan::transformers
