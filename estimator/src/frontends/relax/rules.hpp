// What Relax itself refuses of a command, and what of it is not described yet, each at its flag.
#pragma once
#include <span>

#include "frontends/slime/family.hpp"

namespace oomplan::relax {

/// Adds what Relax's own checks refuse. Those that all frameworks of the family make are not among them (slime/rules.cpp).
void check(slime::SlimeText&, const slime::SlimeMeaning&);
std::span<const slime::NotYet> not_yet();

}  // namespace oomplan::relax
