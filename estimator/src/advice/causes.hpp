// Which phases of a job do not fit, in the order in which the run comes to them, and with which tensors.
#pragma once
#include <vector>

#include "estimate/assemble.hpp"
#include "frontends/rewrite.hpp"

namespace oomplan {

/// Writes down the programs of the GPUs that are short, and nothing when all fit. REQUIRES: the GPUs of `Assembled::estimate` in
/// the order of its classes.
std::vector<Cause> causes_of(const Assembled&, const Job&, const FileWords&);

}  // namespace oomplan
