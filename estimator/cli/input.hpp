// Reads the job that a command line names: a file, or standard input as `-`.
#pragma once
#include <string>
#include <vector>

#include <oomplan/oomplan.hpp>

namespace oomplan::cli {

/// The text of a file. Throws InputError with the path when it is missing, a folder, unreadable or larger than a job can be.
std::string file_text(const std::string& path);
/// First argument the file, the others overrides. Throws InputError.
Source source_of(const std::vector<std::string>& positional);

}  // namespace oomplan::cli
