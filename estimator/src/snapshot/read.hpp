// Reads the file of a memory snapshot: a pickle, or the same dict as JSON (a file whose first character is `{`).
//
// What is looked at is checked: types, sizes of 0 to 2^50, blocks that fill their segment, devices below 1,024. Unknown keys are
// passed over, so that files of newer releases are read. Everything is refused with InputError; nothing is executed.
#pragma once
#include <string>

#include "snapshot/snapshot.hpp"
#include "snapshot/values.hpp"

namespace oomplan::snapshot {

/// The whole file; at most 2 GiB. `-` is standard input.
std::string snapshot_bytes(const std::string& path);
/// `path` is for messages.
Snapshot parse_snapshot(std::string bytes, const std::string& path);
/// The same dict as JSON text. Throws InputError.
Values values_of_json(std::string text, const std::string& path);

}  // namespace oomplan::snapshot
