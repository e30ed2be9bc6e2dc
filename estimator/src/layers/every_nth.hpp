// Checkpoints around one layer of n.
//
// transformers 5.23 checkpoints layers 0, n, 2n, ... (modeling_utils.py _set_gradient_checkpointing, every_n_layers); torchtitan
// layers n - 1, 2n - 1, ... (its activation checkpointing's selective_ac_option of a number, which counts from one).
#pragma once
#include <cstdint>
#include <vector>

#include "catalog/architecture.hpp"

namespace oomplan {

/// The same layers in the same order, cut so that the layers of a run are all checkpointed or all not.
struct SpacedRuns {
  Architecture architecture;
  std::vector<bool> checkpointed;  ///< of every run
};
/// `ends_with`: the last of n layers is checkpointed, not the first. REQUIRES: every >= 1.
SpacedRuns spaced_runs(const Architecture&, std::int64_t every, bool ends_with);

/// Cut where neighbours have adapters beside different modules; `kinds` numbers the sets, layer by layer.
SpacedRuns cut_by(SpacedRuns, const std::vector<int>& kinds);

/// Each of the first layers as a run of its own, where its neighbours' events are not those of an inner layer.
SpacedRuns first_apart(SpacedRuns, std::int64_t layers = 1);

}  // namespace oomplan
