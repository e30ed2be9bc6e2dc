// Reads the job that a command line names: a file, or standard input as `-`.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "command.hpp"

namespace oomplan::cli {

/// First argument the file, the others overrides. Files that it names are looked for beside it. Throws InputError.
Source source_of(const Call&);
/// The strongest effect that --allow names; speed without it. Throws InputError.
Effect effects_of(const Call&);
/// A list with commas.
std::vector<std::string> pieces(std::string_view text);

}  // namespace oomplan::cli
