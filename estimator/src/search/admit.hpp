// A search whose candidates must be sayable: who knows the file rewrites every candidate before it is promised.
#pragma once
#include <functional>

#include <oomplan/oomplan.hpp>

namespace oomplan {

/// Puts into the candidate the job that the file gives once it is changed so, with changes and overrides in its words. False:
/// the file cannot say it.
using Admit = std::function<bool(Candidate&)>;

/// search(); `admit` may be empty, then candidates are described in our own keys.
Found search_admitted(const Job&, const Space&, int keep, const Catalog&, const std::stop_token&, const Admit& admit);

}  // namespace oomplan
