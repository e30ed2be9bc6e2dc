// What changed between two texts, as `patch -p0` reads it.
#pragma once
#include <string>

namespace oomplan {

/// Unified, with three lines of context; "" for equal texts. Lines may end in "\r\n"; a last line without an end is marked.
std::string unified_diff(const std::string& name, const std::string& before, const std::string& after);

}  // namespace oomplan
