// A memory program, read through the caching allocator: what is allocated, what is reserved, and the smallest device on which the
// program still runs. The last is what "fits" means: on a full device the allocator gives back what is free and tries again.
//
// Tensors of Pool::torch go to the allocator, on the stream of their site. Pool::driver and Pool::pausable take their bytes from
// the device directly. A request of a pausable pool that does not fit empties the cache and is tried once more, as torch does for
// a pool with an allocator of its own; the driver's own requests (context, NCCL, graphs) and a resume are not tried again.
#pragma once
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include <oomplan/program.hpp>

#include "program/allocator.hpp"
#include "program/events.hpp"

namespace oomplan {

/// A Program expanded once, as a dense list of events, to be replayed many times. 16 bytes an event.
class FlatProgram {
 public:
  /// Throws what expand() throws.
  explicit FlatProgram(const Program&);
  /// The same, of a program that is expanded already.
  FlatProgram(const Program&, const Events&);

  enum class Op : std::uint8_t { torch_alloc, torch_free, driver_alloc, pausable_alloc, resume, device_free, trim, mark, host };
  struct Event {
    Bytes bytes = 0;         ///< device_free: also a pause
    std::int32_t slot = -1;  ///< torch: where its block is kept while it lives, reused; mark: number of the label
    Op op = Op::host;
    std::uint8_t stream = 0;
    friend bool operator==(const Event&, const Event&) = default;
  };
  /// A long loop of the program's outermost level. Its turns are equal, event for event and slot for slot, from `steady` on.
  struct Loop {
    std::size_t first = 0;   ///< index of the first turn's first event
    std::size_t period = 0;  ///< events a turn
    std::int64_t turns = 0;
    std::int64_t steady = 0;
  };
  std::vector<Loop> loops;
  std::vector<Event> events;  ///< in order; marks and trims are not counted as events by Span
  std::vector<std::string> labels;
  std::int32_t slots = 0;
  Bytes peak = 0;  ///< highest level of the device, tensors rounded to 512 bytes: no device below it can do

 private:
  template <class Each>
  void flatten(const Program&, const Each&);
  void find_steady_turns();
};

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

/// Replays of one program on devices of different sizes. Runs that must go alike are played once.
class Replays {
 public:
  /// settings.device_limit is not looked at. REQUIRES: the program outlives this.
  Replays(const FlatProgram& program, const AllocatorSettings& settings) : program_(program), settings_(settings) {}

  /// The replay on a device of any size.
  const Replay& roomy() { return at(AllocatorSettings{}.device_limit); }
  /// The replay on a device of this size. The reference stays valid.
  const Replay& at(Bytes device_limit);
  /// The smallest device limit at which the replay does not run out, and neither does it one page of 2 MiB above: the allocator
  /// is not strictly monotone in the limit. -1 when no device is large enough because memory_fraction refuses. Nothing as soon as
  /// it is known to be more than `most`.
  std::optional<Bytes> needed_capacity(Bytes most = std::numeric_limits<Bytes>::max());

 private:
  const FlatProgram& program_;
  AllocatorSettings settings_;
  std::deque<Replay> known_;
};
Bytes needed_capacity(const FlatProgram&, const AllocatorSettings&);
Bytes needed_capacity(const Program&, const AllocatorSettings&);

}  // namespace oomplan
