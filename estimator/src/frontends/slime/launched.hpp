// Programs of slime that a command starts.
#pragma once
#include <span>

#include "frontends/handing.hpp"
#include "frontends/slime/family.hpp"

namespace oomplan::slime {

std::span<const launch::EntryPoint> entry_points();
/// The source of a command whose arguments are those of `family`.
Source take(const Family& family, Handing&);

}  // namespace oomplan::slime
