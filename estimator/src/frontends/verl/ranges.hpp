// Bounds of the numbers that arithmetic is made with: no product of them overflows.
#pragma once
#include <vector>

#include <oomplan/oomplan.hpp>

#include "frontends/compose/node.hpp"

namespace oomplan::verl {

/// Numbers of a resolved tree that are out of bounds, by their keys. They are put on the bound, so that what follows can go on.
std::vector<Problem> bring_into_range(compose::Node& root);

}  // namespace oomplan::verl
