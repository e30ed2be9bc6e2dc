// Programs of slime that a command starts.
#pragma once
#include <span>

#include "frontends/handing.hpp"

namespace oomplan::slime {

std::span<const launch::EntryPoint> entry_points();
Source take(Handing&);

}  // namespace oomplan::slime
