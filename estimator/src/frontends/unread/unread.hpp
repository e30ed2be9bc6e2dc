// Frameworks that are known by name, and whose words are not read yet: a user is told so, by that name.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "frontends/launch/entry_points.hpp"

namespace oomplan::unread {

std::span<const launch::EntryPoint> entry_points();

/// The framework whose configuration a YAML text is; "": none of them.
std::string framework_of(std::string_view text);

/// Is this the name of one of them, in any case?
bool is_framework(std::string_view name);

}  // namespace oomplan::unread
