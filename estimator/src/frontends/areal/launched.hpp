// Commands that start AReaL: its launchers, and any script with a --config file that is one of AReaL's.
#pragma once
#include <span>

#include "frontends/handing.hpp"

namespace oomplan::areal {

std::span<const launch::EntryPoint> entry_points();
/// The source of the file that --config names, with the overrides behind it. Throws InputError: there is no such file, or it is
/// another framework's.
Source take(Handing&);

}  // namespace oomplan::areal
