// A configuration of AReaL for a job that somebody has in mind.
#pragma once
#include <string>

#include "frontends/start.hpp"

namespace oomplan::areal {

/// Sets the release where it is not said. Throws InputError: the release has other keys.
std::string written(Start&);

}  // namespace oomplan::areal
