// Reads the job that a command line names: a file, or standard input as `-`.
#pragma once
#include <string>
#include <vector>

#include <oomplan/oomplan.hpp>

namespace oomplan::cli {

/// First argument the file, the others overrides. Throws InputError.
Source source_of(const std::vector<std::string>& positional);

}  // namespace oomplan::cli
