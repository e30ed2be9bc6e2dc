// Programs of Relax that a command starts.
#pragma once
#include <span>

#include "frontends/launch/entry_points.hpp"
#include "frontends/slime/family.hpp"

namespace oomplan::relax {

/// Relax's row of slime's family.
const slime::Family& family();
std::span<const launch::EntryPoint> entry_points();

}  // namespace oomplan::relax
