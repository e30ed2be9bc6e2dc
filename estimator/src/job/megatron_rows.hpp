// The settings of engine megatron as rows of the knob table.
#pragma once
#include <vector>

#include "job/knobs.hpp"

namespace oomplan {

std::vector<Knob> megatron_rows();

}  // namespace oomplan
