// Advice on a job whose estimate is there already.
#pragma once
#include <vector>

#include <oomplan/oomplan.hpp>

namespace oomplan {

/// advise() of a Job, whose estimate() or explain() is `judged`: it is not replayed again.
std::vector<Remedy> remedies_for(const Job&, Effect allow, const Catalog*, const Estimate& judged);
/// The remedies of advise() of a file; the same.
std::vector<Remedy> remedies_for(const Source&, Effect allow, const Catalog*, const Estimate& judged);

}  // namespace oomplan
