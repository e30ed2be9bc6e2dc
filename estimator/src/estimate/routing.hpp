// What an estimate assumes of a router, whose choice is data.
#pragma once
#include <string>

#include <oomplan/job.hpp>

namespace oomplan {

/// A sentence for a role that trains experts in a loop; "" where the routing changes no tensor's size.
/// REQUIRES: the role's architecture is known.
std::string routing_assumption(const Role&);

}  // namespace oomplan
