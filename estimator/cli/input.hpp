// Reads the job that a command line names: a file, or standard input as `-`.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "command.hpp"

namespace oomplan::cli {

/// First argument the file, the others overrides. Files that it names are looked for beside it. A script stands in the file's
/// place, with its arguments behind it; with `--` what stands behind it is a command, and in front of it are overrides. Of a
/// script or a command: what it starts. Throws InputError.
Source source_of(const Call&);
/// The same before it is looked into: what a script or command would start is not yet known.
Source source_as_given(const Call&);
/// Is the job a command line behind `--`?
inline bool is_command(const Call& call) { return call.behind.has_value(); }
/// Is the first argument a file with a script?
bool names_script(const Call&);
/// Refuses the options that only scripts and commands need. Throws InputError.
void refuse_without_command(const Call&);
/// The strongest effect that --allow names; speed without it. Throws InputError.
Effect effects_of(const Call&);
/// What --gpus says: a number, perhaps with their kind; `otherwise` without it. Throws InputError, also when --gpu says another
/// kind.
struct GpusAsked {
  std::int64_t count = 0;
  std::string kind;  ///< of --gpu, where --gpus says none
};
GpusAsked gpus_of(const Call&, std::int64_t otherwise);
/// A list with commas.
std::vector<std::string> pieces(std::string_view text);

}  // namespace oomplan::cli
