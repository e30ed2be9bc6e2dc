// Reads the job that a command line names: a file, or standard input as `-`.
#pragma once
#include <string>
#include <vector>

#include "command.hpp"

namespace oomplan::cli {

/// First argument the file, the others overrides. Files that it names are looked for beside it. Throws InputError.
Source source_of(const Call&);

}  // namespace oomplan::cli
