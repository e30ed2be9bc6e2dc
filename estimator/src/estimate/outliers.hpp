// What an estimate assumes of outliers, which are data.
#pragma once
#include <string>

#include <oomplan/job.hpp>

namespace oomplan {

/// A sentence for a role whose frozen base has 8 bits; "" for others.
std::string outlier_assumption(const Role&);

}  // namespace oomplan
