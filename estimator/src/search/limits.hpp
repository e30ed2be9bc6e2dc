// Why nothing fits: which phase stops which axis, and by how much.
#pragma once
#include <vector>

#include <oomplan/oomplan.hpp>

#include "search/server_side.hpp"
#include "search/trainer_side.hpp"

namespace oomplan {

/// Nothing fits even by its levels.
std::vector<Limit> limits_of(const Job&, const std::vector<TrainerVerdict>&, const std::vector<ServerVerdict>&,
                             const TrainerSide&, Bytes usable);
/// Why this estimate does not fit.
Limit limit_of(const Estimate&);

}  // namespace oomplan
