// search --max: the largest value of one setting with which the job still fits, everything else as it is. Every value is tried.
#pragma once
#include <oomplan/oomplan.hpp>

#include "catalog/catalog.hpp"
#include "search/admit.hpp"

namespace oomplan {

Found solve(const Job&, const Space&, int keep, const Catalog&, const std::stop_token&, const Admit& admit);
/// Fills changes, overrides and job_file of a candidate by comparing it with the job it came from.
void describe_changes(const Job& from, Candidate&);

}  // namespace oomplan
