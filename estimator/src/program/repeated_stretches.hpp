// Stretches of a flattened program that come again and again without a loop of the program saying so: micro-batches of a
// pipeline.
#pragma once
#include <cstddef>
#include <vector>

#include "program/flat_program.hpp"

namespace oomplan {

/// Stretches between `marks` (numbers of events outside of all loops, rising) that follow themselves, event for event and slot
/// for slot, become loops. No stretch that ends a turn of a process does.
void fold_repeats(FlatProgram&, const std::vector<std::size_t>& marks);

}  // namespace oomplan
