// GPUs on which the same programs run, merged: equal seats of equal roles. Ranks are never enumerated by hand in reports.
#pragma once
#include <string>
#include <vector>

#include "estimate/role_program.hpp"

namespace oomplan {

struct SeatOnGpu {
  std::size_t role = 0;
  Seat seat;
  std::size_t process = 0;  ///< index into the class's processes
  bool operator==(const SeatOnGpu&) const = default;
};
struct GpuClass {
  std::vector<SeatOnGpu> seats;  ///< in the order of the job's roles
  std::size_t processes = 0;
  std::vector<std::int64_t> gpus;  ///< numbers of its GPUs
};
std::vector<GpuClass> gpu_classes(const Job&, const std::vector<RoleRun>&);
/// "actor 0-3, ref 0-3": ranks of every role on the class's GPUs.
std::string ranks_text(const Job&, const GpuClass&);

}  // namespace oomplan
