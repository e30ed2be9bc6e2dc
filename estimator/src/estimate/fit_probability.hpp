// How likely a GPU of a given size is enough, from the errors that were measured on real GPUs.
#pragma once
#include <optional>
#include <vector>

#include <oomplan/oomplan.hpp>

namespace oomplan {

/// ln(measured / predicted) of a group of cases, where measured is what the allocator had reserved or the driver saw.
class MeasuredErrors {
 public:
  /// REQUIRES: at least two.
  explicit MeasuredErrors(std::vector<double> log_ratios);

  /// P(measured <= usable) where `needed` bytes are predicted. Within what was measured it is the share of the cases that the
  /// headroom would have covered, (k + 1/2) / (n + 1), whatever the shape of their distribution. Outside, where the share says
  /// nothing more, it goes on as the tail of Student's predictive distribution of the same cases does.
  /// REQUIRES: needed > 0, usable > 0.
  double fit_probability(Bytes needed, Bytes usable) const;

 private:
  /// What of the tail of Student's predictive distribution that begins at `edge` lies beyond `log_ratio`: 1 to 0.
  double tail(double log_ratio, double edge) const;

  std::vector<double> log_ratios_;  ///< ascending
  double mean_ = 0, scale_ = 0;
};

/// The same for a role: from the group that speaks of its framework or kernels; without one the mean over the groups of its
/// engine; without any the mean over the engines of its kind (trainers, servers), each of the same weight.
/// nullopt: nothing was measured.
std::optional<double> fit_probability(const Role& role, Bytes needed, Bytes usable);
/// The most bytes that a role may need of `usable` ones to fit with at least this probability; `usable` where nothing was
/// measured.
Bytes likely_need(const Role& role, Bytes usable, double probability);

/// Fills `fit_probability` of every GPU, by levels where a class was not replayed, and of the whole: the least of the GPUs, whose
/// errors come from the same program and so go together; 0 where a server or a host refuses.
void judge_probability(Estimate&, const Job&);

}  // namespace oomplan
