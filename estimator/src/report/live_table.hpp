// Live tensors as a table: bytes, how many, name, shape, dtype, who keeps them.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

#include <oomplan/oomplan.hpp>

namespace oomplan {

/// The first `rows`, and what the rest adds up to. Ends in a line break.
std::string live_table(const std::vector<LiveTensor>&, std::size_t rows, std::size_t indent, const TextStyle&);

}  // namespace oomplan
