// What verl itself refuses of reward models in servers.
#pragma once
#include <vector>

#include "frontends/verl/read.hpp"

namespace oomplan::verl {

/// Of a configuration that has one.
std::vector<Problem> refusals_of_rewards(const VerlText&);

}  // namespace oomplan::verl
