// What estimate(), explain() and program() share: roles resolved, GPUs merged, every class folded.
#pragma once
#include <vector>

#include "estimate/fold.hpp"

namespace oomplan {

struct Assembled {
  std::vector<RoleRun> runs;
  Timeline timeline;
  std::vector<GpuClass> classes;
  std::vector<ClassFold> folds;  ///< of classes
  Estimate estimate;             ///< gpus in the order of classes
};
/// REQUIRES: job outlives the result.
Assembled assemble(const Job&, const Catalog&, TapeStore&);
/// Sorts the GPUs, and takes the evidence for the first.
void worst_first(Estimate&, const Job&);

}  // namespace oomplan
