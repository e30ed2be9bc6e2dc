// A GPU's timeline, folded: every phase of every process as a Span, applied to one (level, reserved) pair per process.
//
// An idle process holds what its caching allocator has reserved, not what it has allocated. The device figure of a phase is what
// the active process reaches plus what the others hold.
#pragma once
#include <algorithm>
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

/// What a process holds between its turns.
struct ProcessState {
  Bytes level = 0;     ///< device, all pools
  Bytes cached = 0;    ///< of that: torch's
  Bytes reserved = 0;  ///< torch's, with what is free in its cache
  Bytes host = 0;
  Bytes held() const { return level - cached + reserved; }
  /// Behind a stretch of execution.
  void pass(const Span& s) {
    reserved = s.trimmed ? cached + s.tail : std::max(reserved, cached + s.tail);
    level += s.net;
    cached += s.cached;
    reserved = std::max(reserved, cached);
    host += s.host_net;
  }
};

/// A turn of a role that has no seat in the class: what a neighbour finds on the GPU.
struct Visit {
  Bytes held = 0;  ///< by all processes of the class
  Bytes need = 0;  ///< highest need of the class since the visit before
};

/// A turn of one of several processes that share the class's GPUs.
struct TurnFigure {
  std::size_t process = 0;
  Bytes held = 0;  ///< by the process behind the turn, without what fragmentation adds
};
/// What a phase takes in one of those turns: a server wakes twice in an iteration, and the others do not hold the same both
/// times.
struct PhaseInTurn {
  std::size_t turn = 0;   ///< index into ClassFold::turns
  std::size_t phase = 0;  ///< index into ClassFold::phases
  Bytes level = 0;        ///< the process's own highest one
  Bytes device = 0;       ///< the same with what its allocator keeps
};

struct ClassFold {
  std::vector<PhaseFigure> phases;                 ///< in the order of first occurrence
  std::vector<std::optional<ServerPlan>> servers;  ///< by role, for the servers of the class
  Bytes held = 0;                                  ///< by all processes behind the last turn
  std::vector<TurnFigure> turns;                   ///< in order; empty where the class has one process
  std::vector<PhaseInTurn> in_turns;               ///< likewise
  std::vector<Visit> visits;  ///< one for every turn of a role without a seat here, and one behind the last turn
};
/// Init and two iterations. `others`: device memory that other programs hold. REQUIRES: timeline_of(job).
ClassFold fold_class(const Job&, const std::vector<RoleRun>&, const GpuClass&, const Timeline&);

}  // namespace oomplan
