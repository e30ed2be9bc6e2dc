// What `oomplan check` prints.
#pragma once
#include <string>

#include "estimate/check.hpp"

namespace oomplan {

/// One line.
std::string to_text(const Check&);
/// oomplan.check/1.
std::string to_json(const Check&);

}  // namespace oomplan
