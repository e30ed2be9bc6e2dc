// What verl itself refuses once Hydra has composed a configuration: its own checks, release by release, each with the source that
// makes it.
#pragma once
#include <vector>

#include <oomplan/oomplan.hpp>

#include "frontends/verl/read.hpp"

namespace oomplan::verl {

/// All of them at once. Where the text has problems already only the values themselves are judged: what is missing may be one of
/// those.
std::vector<Problem> refusals_of(const VerlText&);

}  // namespace oomplan::verl
