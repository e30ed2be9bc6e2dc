// What a job is asked to do, whatever it runs on and however it is cut into micro-batches.
#pragma once
#include <cstdint>

#include <oomplan/job.hpp>

namespace oomplan {

/// Two answers can be compared when their workloads are equal.
struct Workload {
  std::int64_t prompt = 0, response = 0;  ///< tokens, of the longest
  std::int64_t sequences_per_step = 0;
  bool operator==(const Workload&) const = default;
};
Workload workload_of(const Job&);

/// Tokens of the longest sequence of a step; 0: the job does not say it.
std::int64_t longest_sequence(const Job&, const Role&);
/// The least budget of tokens with which a trainer runs: frameworks that pack whole sequences refuse one that is longer than a
/// micro-batch, on every engine. 0: any budget.
std::int64_t least_budget(const Job&, const Role&);

}  // namespace oomplan
