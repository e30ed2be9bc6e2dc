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
    if (i.depth_ == -1) return i.offset_;
    if (i.depth_ < -1) return formal[static_cast<std::size_t>(-2 - i.depth_)] + i.offset_;
    return i.offset_ + loops[static_cast<std::size_t>(i.depth_)] * i.step_;
  }
  /// By how much it is more in the next turn of the loop of that nesting depth.
  static std::int64_t step(const Index& i, std::size_t depth) { return i.depth_ == static_cast<int>(depth) ? i.step_ : 0; }
};

}  // namespace oomplan
