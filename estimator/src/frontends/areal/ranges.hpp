// Whole numbers of an AReaL file that no job can have.
#pragma once
#include <vector>

#include <oomplan/oomplan.hpp>

#include "frontends/compose/node.hpp"

namespace oomplan::areal {

/// One problem for every number of the resolved configuration `root` that is outside its range.
std::vector<Problem> range_problems(const compose::Node& root);

}  // namespace oomplan::areal
