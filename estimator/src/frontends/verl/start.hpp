// The script that starts a job which somebody has in mind.
#pragma once
#include <string>

#include "frontends/start.hpp"

namespace oomplan::verl {

/// Bash. Fills in the release where none was asked for. Throws InputError: a release whose scripts are not written, or no trainer
/// of verl for the algorithm.
std::string written(Start&);

}  // namespace oomplan::verl
