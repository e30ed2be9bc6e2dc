// Files that the program writes.
#pragma once
#include <string>
#include <string_view>

namespace oomplan::cli {

/// Writes `bytes` as the file `path`. What it replaces has to be of the same kind, by its first two bytes: a mistyped name must
/// not cost anyone a job file or a checkpoint. `kind` names it in messages ("a memory snapshot"). Throws InputError for another
/// file, for a symbolic link, which may lead anywhere, for a folder, device or pipe, and when it cannot be written.
void write_file(const std::string& path, std::string_view bytes, std::string_view kind);

}  // namespace oomplan::cli
