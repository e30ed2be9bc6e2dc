// What a YAML file is shows without parsing it.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace oomplan {

/// Keys that begin a line.
std::vector<std::string> keys_of_lines(std::string_view text);

}  // namespace oomplan
