// What the indices of an operation are while a program is expanded.
#pragma once
#include <array>
#include <cstdint>
#include <vector>

#include <oomplan/program.hpp>

namespace oomplan {

/// Opens Index for the readers.
struct ProgramReader {
  static std::int64_t value(const Index& i, const std::vector<std::int64_t>& loops, const std::array<std::int64_t, 2>& formal) {
    if (i.depth() == -1) return i.offset();
    if (i.depth() < -1) return formal[static_cast<std::size_t>(-2 - i.depth())] + i.offset();
    return i.offset() + loops[static_cast<std::size_t>(i.depth())] * i.step();
  }
  /// By how much it is more in the next turn of the loop of that nesting depth.
  static std::int64_t step(const Index& i, std::size_t depth) { return i.depth() == static_cast<int>(depth) ? i.step() : 0; }
};

}  // namespace oomplan
