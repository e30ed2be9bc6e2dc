// A Program as the replay plays it: expanded once, every tensor with the place where its block is kept. Turns of a loop that
// would be what the turns before them were are said to be more of the same, and not written down.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <oomplan/program.hpp>

#include "program/ledger.hpp"

namespace oomplan {

/// Label of the mark behind a turn of a process that leaves the GPU to others. REQUIRES: no such mark is in a loop.
inline constexpr std::string_view kTurnEnd = "turn end";

/// A Program expanded once, as a list of events, to be replayed many times. 16 bytes an event.
class FlatProgram {
 public:
  /// Throws what expand() throws; of turns that are not expanded nothing. `ledgers`: gets what ledger_by_phase() gives.
  /// `every_turn`: without loops, to compare with.
  explicit FlatProgram(const Program&, std::vector<PhaseLedger>* ledgers = nullptr, bool every_turn = false);

  enum class Op : std::uint8_t {
    torch_alloc,
    torch_free,
    driver_alloc,
    pausable_alloc,
    resume,
    device_free,
    trim,
    segments,
    mark,
    host
  };
  struct Event {
    Bytes bytes = 0;         ///< device_free: also a pause; segments: 1 where they are expandable
    std::int32_t slot = -1;  ///< torch: where its block is kept while it lives, reused; mark: number of the label
    Op op = Op::host;
    std::uint8_t stream = 0;
    std::uint8_t in_flight = 0;  ///< Site::in_flight
    friend bool operator==(const Event&, const Event&) = default;
  };
  /// Behind events [first, end) the same ones follow, `more` times: event for event and slot for slot. Loops stand in the order
  /// of their ends; those from number `inside` on that come before this one lie in its stretch.
  struct Loop {
    std::size_t first = 0, end = 0;
    std::int64_t more = 0;
    std::size_t inside = 0;
  };
  std::vector<Loop> loops;
  std::vector<Event> events;           ///< in order; marks, trims and switches are not counted as events by Span
  std::vector<std::size_t> uncounted;  ///< numbers of those
  std::vector<std::size_t> turn_ends;  ///< numbers of events: behind each mark that says kTurnEnd, and of all
  std::vector<std::string> labels;
  std::int32_t slots = 0;
  Bytes peak = 0;  ///< highest level of the device, tensors rounded to 512 bytes: no device below it can do
};

}  // namespace oomplan
