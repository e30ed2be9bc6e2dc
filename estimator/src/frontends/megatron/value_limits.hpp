// How large a value of a flag of Megatron may be. The parser takes any number that Python can hold, and its values are multiplied
// with each other before Megatron, or whoever reads them here, looks at them.
#pragma once
#include <string>

#include "frontends/megatron/flag_table.hpp"

namespace oomplan::megatron {

/// Whether a whole number or a number is one that its flag may have. Of other values true.
bool within_limits(const Flag&, const nlohmann::json& value);
/// "a whole number from 1 to 131072".
std::string limits_text(const Flag&);

}  // namespace oomplan::megatron
