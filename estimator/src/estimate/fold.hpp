// A GPU's timeline, folded: every phase of every process as a Span, applied to one (level, reserved) pair per process.
//
// An idle process holds what its caching allocator has reserved, not what it has allocated. The device figure of a phase is what
// the active process reaches plus what the others hold.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "estimate/gpu_class.hpp"

namespace oomplan {

/// A phase on one GPU; the highest of its occurrences.
struct PhaseFigure {
  PhaseKind phase = PhaseKind::load;
  std::size_t role = 0;
  Bytes allocated = 0;  ///< torch memory of the active process
  Bytes reserved = 0;   ///< the same with what its allocator keeps: a lower bound, the replay adds fragmentation
  Bytes device = 0;     ///< all processes, contexts and communicators included
  Bytes needed = 0;     ///< without the active process's idle cache, which a retry would release
  Bytes others = 0;     ///< held by the other processes
  Bytes host = 0;       ///< of this GPU's processes
};

struct ClassFold {
  std::vector<PhaseFigure> phases;                   ///< in the order of first occurrence
  std::vector<std::optional<ServerPlan>> servers;    ///< by role, for the servers of the class
  Bytes held = 0;                                    ///< by all processes behind the last turn
};
/// Init and two iterations. `others`: device memory that other programs hold. REQUIRES: timeline_of(job).
ClassFold fold_class(const Job&, const std::vector<RoleRun>&, const GpuClass&, const Timeline&);

}  // namespace oomplan
