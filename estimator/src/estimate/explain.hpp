// The replay of a job's fullest GPUs only: what the survivors of a search get.
#pragma once
#include <optional>

#include <oomplan/oomplan.hpp>

#include "catalog/catalog.hpp"
#include "estimate/process_store.hpp"
#include "estimate/tape_store.hpp"

namespace oomplan {

/// estimate() with the class of GPUs that needs most written down and replayed; the others keep the fold's figures.
Estimate explain_worst(const Job&, const Catalog&, TapeStore&);
/// The same, or nothing as soon as the replay shows that the class needs more than its GPUs have: then that estimate does not
/// fit.
std::optional<Estimate> explain_worst_if_it_fits(const Job&, const Catalog&, TapeStore&, ProcessStore&);

}  // namespace oomplan
