// Values that AReaL refuses although key and type are right: dtypes that are none, settings that exclude each other, values that
// stand nowhere; and those that only the job's machine knows. Numbers out of range are frontends/areal/ranges.hpp's business.
#pragma once
#include "frontends/areal/teller.hpp"

namespace oomplan::areal {

/// Adds to the refusals, and a note about names that AReaL wants and no estimate needs.
void check_values(Teller&, const compose::Node& root);

}  // namespace oomplan::areal
