// The rows of a search over a server's settings.
#pragma once
#include <string>

#include <oomplan/oomplan.hpp>

namespace oomplan {

/// REQUIRES: candidates of a server by itself.
std::string serving_table(const Found&, const TextStyle&);

}  // namespace oomplan
