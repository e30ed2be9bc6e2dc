// What starts verl, and its words as this front end reads them.
#pragma once
#include <span>

#include "frontends/handing.hpp"

namespace oomplan::verl {

std::span<const launch::EntryPoint> entry_points();
Source take(Handing&);

}  // namespace oomplan::verl
