// Operators by themselves: inputs and weights are made, the operator is called twice in the simulator.
#pragma once
#include <string_view>
#include <vector>

#include <oomplan/operators.hpp>

#include "layers/eager.hpp"

namespace oomplan {

/// What happened, and where the calls begin among the events.
struct OperatorRun {
  Eager eager;
  std::size_t first_call = 0, later_call = 0, end = 0;           ///< behind `end` everything goes
  bool multiplies_forward = false, multiplies_backward = false;  ///< cuBLAS makes a workspace for the thread
};
/// REQUIRES: name, implementation and sizes are those of a row. `multiprocessors`: of the GPU.
void run_operator(OperatorRun& run, const OperatorCall&, std::int64_t multiprocessors);

/// "liger 0.8.2": the implementation without its release.
std::string_view without_release(std::string_view by);

}  // namespace oomplan
