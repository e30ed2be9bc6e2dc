// The job before any change, beside what a search found: so that a step time of 0.9 means something.
#pragma once
#include <oomplan/oomplan.hpp>

namespace oomplan {

/// Sets found.as_it_stands; nothing changes where nothing was found. Costs an estimate.
void put_as_it_stands(Found& found, const Job&, const Space&, const Catalog&);

}  // namespace oomplan
