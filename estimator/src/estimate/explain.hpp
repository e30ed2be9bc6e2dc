// The replay of a job's fullest GPUs only: what the survivors of a search get.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <oomplan/oomplan.hpp>

#include "catalog/catalog.hpp"
#include "estimate/assemble.hpp"
#include "estimate/process_store.hpp"
#include "estimate/tape_store.hpp"
#include "program/allocator.hpp"

namespace oomplan {

/// Every process of every class replayed, and the classes' figures set by it. `lists`: what is live, and the curve. `known`: GPUs
/// that were replayed before; nullptr: none were.
void replay_classes(Assembled&, const Job&, bool lists, ProcessStore* known = nullptr);
/// The same without lists, of the class that lacks most: what another may lack at most is known sooner, and its figures stay
/// those of the fold where it is less. False, and the figures are not to be used, once `known` has played so many events.
bool replay_fullest(Assembled&, const Job&, ProcessStore& known, std::int64_t most_events);
/// estimate() with the class of GPUs that needs most written down and replayed; of those that several processes share the one
/// that needs most, too, if it runs out of memory. The others keep the fold's figures.
Estimate explain_worst(const Job&, const Catalog&, TapeStore&);
/// The same, or nothing as soon as the replay shows that one of them needs more than its GPUs have: then that estimate does not
/// fit.
std::optional<Estimate> explain_worst_if_it_fits(const Job&, const Catalog&, TapeStore&, ProcessStore&);

/// One process as explain() replays it, on a device of any size.
struct ProcessRun {
  std::string ranks;  ///< "actor 0-3": of which GPUs
  Program program;
  AllocatorSettings settings;
};
/// The process of the worst moment on the GPUs that lack most. Throws InputError when the job has no GPU.
ProcessRun fullest_run(const Job&, const Catalog&, TapeStore&);
/// Every process of every class of GPUs, those that lack most first; none for a job without GPUs.
std::vector<ProcessRun> all_runs(const Job&, const Catalog&, TapeStore&);

}  // namespace oomplan
