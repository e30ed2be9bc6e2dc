// A memory program, read through the caching allocator: what is allocated, what is reserved, and the smallest device on which the
// program still runs. The last is what "fits" means: on a full device the allocator gives back what is free and tries again.
//
// Tensors of Pool::torch go to the allocator, on the stream of their site. Pool::driver and Pool::pausable take their bytes from
// the device directly. A request of a pausable pool that does not fit empties the cache and is tried once more, as torch does for
// a pool with an allocator of its own; the driver's own requests (context, NCCL, graphs) and a resume are not tried again.
//
// Several processes on one GPU take turns. Each has an allocator of its own, and one that is not at work keeps what its allocator
// has reserved, gaps included: nobody can make it give that back.
#pragma once
#include <cstdint>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "program/allocator.hpp"
#include "program/flat_program.hpp"

namespace oomplan {

/// What a replay shows of a stretch between two marks.
struct PhaseReplay {
  std::string phase;
  Bytes allocated_peak = 0;  ///< torch, whole blocks
  Bytes reserved_peak = 0;
  Bytes device_peak = 0;  ///< reserved and what other pools hold
  std::int64_t retries = 0;
};

struct Replay {
  bool ok = true;
  std::int64_t failed_event = -1;  ///< ordinal, as Span::witness, of the request for which there was no memory
  std::string failed_phase;
  Bytes failed_bytes = 0;
  Bytes allocated_peak = 0;
  Bytes requested_peak = 0;
  Bytes reserved_peak = 0;
  Bytes reserved_end = 0;
  Bytes outside_end = 0;  ///< driver and pausable pools
  Bytes device_peak = 0;
  Bytes refused = 0;  ///< the lowest level that the device refused; 0: nothing was refused
  std::int64_t retries = 0;
  std::vector<PhaseReplay> phases;  ///< equal labels are one row, in order of first appearance; "" before the first mark
};
/// Where a turn of a long loop leaves the allocator as it found it, the turns left would do the same and are not played: the
/// result is that of playing all.
Replay replay(const FlatProgram&, const AllocatorSettings&);
Replay replay(const Program&, const AllocatorSettings&);

/// Processes that take turns on one GPU.
struct SharedGpu {
  struct Process {
    const FlatProgram* program = nullptr;  ///< nullptr: not replayed
    std::vector<Bytes> held = {};          ///< then: what it holds behind each of its turns
  };
  std::vector<Process> processes;
  std::vector<std::size_t> turns;  ///< numbers of processes, in order
};
struct TurnReplay {
  std::size_t process = 0;
  Bytes beside = 0;                 ///< what the other processes hold all the while
  std::vector<PhaseReplay> phases;  ///< of this turn, without `beside`; none of a process that is not replayed
  Bytes held = 0;                   ///< by the process behind the turn
};
struct SharedReplay {
  bool ok = true;
  std::size_t failed_process = 0;
  Bytes device_peak = 0;          ///< of all processes together
  Bytes refused = 0;              ///< likewise; 0: nothing was refused
  std::vector<Replay> processes;  ///< each on its own: figures without the others, but for `refused`
  std::vector<TurnReplay> turns;  ///< those that were begun
};
/// settings.device_limit is that of the GPU. REQUIRES: as many turns of each process as its program has ends of turns, or as it
/// has figures of what it holds.
SharedReplay replay(const SharedGpu&, const AllocatorSettings&);

class Beginnings;
/// Replays of the same programs on devices of different sizes. Runs that must go alike are played once, and those that must begin
/// alike go on from one place while a capacity is looked for.
class Replays {
 public:
  /// settings.device_limit is not looked at. REQUIRES: the programs outlive this.
  Replays(SharedGpu gpu, const AllocatorSettings& settings);
  /// One process.
  Replays(const FlatProgram& program, const AllocatorSettings& settings) : Replays(SharedGpu{{{&program}}, {0}}, settings) {}
  Replays(const Replays&) = delete;
  Replays& operator=(const Replays&) = delete;
  ~Replays();

  /// The replay on a device of any size.
  const SharedReplay& roomy() { return at(AllocatorSettings{}.device_limit); }
  /// Events that were played so far, by all of them.
  std::int64_t events_played() const { return played_; }
  /// The replay on a device of this size. The reference stays valid.
  const SharedReplay& at(Bytes device_limit);
  /// The smallest device limit at which the replay does not run out, and neither does it one page of 2 MiB above: the allocator
  /// is not strictly monotone in the limit. -1 when no device is large enough because memory_fraction refuses. Nothing as soon as
  /// it is known to be more than `most`. `fails`: only sizes above this one, at which the replay runs out. A larger device can
  /// fail where a smaller one does not: nothing made an idle process give its cache back.
  std::optional<Bytes> needed_capacity(Bytes most = std::numeric_limits<Bytes>::max(), Bytes fails = -1);

 private:
  std::optional<Bytes> search(Bytes most, Bytes fails);
  SharedGpu gpu_;
  AllocatorSettings settings_;
  Bytes least_ = 0;  ///< no smaller device can do
  std::deque<SharedReplay> known_;
  std::unique_ptr<Beginnings> beginnings_;  ///< until a capacity was looked for
  std::int64_t played_ = 0;
};
Bytes needed_capacity(const FlatProgram&, const AllocatorSettings&);
Bytes needed_capacity(const Program&, const AllocatorSettings&);

}  // namespace oomplan
