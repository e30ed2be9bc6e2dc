// Paths as texts, without a look at the disk.
#pragma once
#include <string>
#include <string_view>

namespace oomplan::launch {

/// `path` seen from `folder`, without "." and, where a folder stands in front of it, "..".
std::string joined_path(std::string_view folder, std::string_view path);
/// As dirname and basename say.
std::string folder_of(std::string_view path);
std::string last_part(std::string_view path);

}  // namespace oomplan::launch
