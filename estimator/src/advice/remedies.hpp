// The single changes that advise() would name, of a job whose estimate is there already.
#pragma once
#include <cstdint>
#include <vector>

#include <oomplan/oomplan.hpp>

namespace oomplan {

struct Remedies {
  std::vector<Remedy> all;  ///< strongest first, of a file those that gain most for what they cost
  bool replayed = true;     ///< false: replays of all would have taken long, so that some are judged by levels, lower bounds
};
/// `judged`: estimate() or explain() of the job, which is not replayed again.
Remedies remedies_of(const Job&, Effect allow, const Catalog*, const Estimate& judged);
/// In the words of the file.
Remedies remedies_of(const Source&, Effect allow, const Catalog*, const Estimate& judged);

/// Allocations and frees that are played for the remedies of one estimate, and the replay that passes it to its end: half a
/// second to two.
inline constexpr std::int64_t kMostEventsOfRemedies = 14'000'000;

}  // namespace oomplan
