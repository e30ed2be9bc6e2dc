// The replay of a job's fullest GPUs only: what the survivors of a search get.
#pragma once
#include <oomplan/oomplan.hpp>

#include "catalog/catalog.hpp"
#include "estimate/tape_store.hpp"

namespace oomplan {

/// estimate() with the class of GPUs that needs most written down and replayed; the others keep the fold's figures.
Estimate explain_worst(const Job&, const Catalog&, TapeStore&);

}  // namespace oomplan
