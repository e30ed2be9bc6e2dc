// How a process's memory rises and falls in the course of an iteration: what explain() draws.
#pragma once
#include <cstddef>
#include <vector>

#include <oomplan/oomplan.hpp>

namespace oomplan {

inline constexpr std::size_t kLevelsOfAStretch = 64;  // more than a terminal has columns for one phase

/// The stretches of `program` from its mark number `from` on (the first is 0), each with at most kLevelsOfAStretch levels: the
/// highest device level within an equal share of its events. A stretch without events has the level it began with.
std::vector<Stretch> stretches(const Program& program, std::size_t from);

}  // namespace oomplan
