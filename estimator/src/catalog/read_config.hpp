// read_config on a part of a larger text: a built-in model's row holds its config under a key.
#pragma once
#include <string>

#include "catalog/architecture.hpp"
#include "catalog/fields.hpp"

namespace oomplan {

Architecture read_architecture(const Fields& config, const std::string& name);

}  // namespace oomplan
