// GPUs that a reader need not tell apart: what a table shows once.
//
// Classes of GPUs go into one block when the same roles run on them, they come to the same phases, and their worst moments are
// the same phase, in which their needs differ by a hundredth of the GPU at most: what the table's column of percent resolves. So
// it is with the rank that sends weights or writes files for the others. A block shows the most that any of its GPUs needs in
// each phase, and how far they are apart. JSON keeps every class.
#pragma once
#include <string>
#include <vector>

#include <oomplan/oomplan.hpp>

namespace oomplan {

struct GpuBlock {
  GpuAnswer shown;   ///< ranks and GPUs of all, in each phase the highest usage
  Bytes spread = 0;  ///< the largest difference in what a phase needs, of any phase
};
/// In the order of the classes, each where its first one stands.
std::vector<GpuBlock> blocks_of(const std::vector<GpuAnswer>&);

}  // namespace oomplan
