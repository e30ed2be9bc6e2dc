// A memory snapshot of PyTorch's caching allocator (torch.cuda.memory._dump_snapshot) as data: the segments that are reserved
// now, with their blocks, and the recorded history of every device, oldest event first.
//
// Files of torch 2.0 to 2.13 are read: what an older release does not write is empty. Sizes are bytes. The format is that of
// torch/csrc/cuda/memory_snapshot.cpp; docs/snapshot.md lists what each release added.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <oomplan/units/bytes.hpp>

#include "program/allocator.hpp"

namespace oomplan::snapshot {

/// A place in a program. C++ frames have the file "??" or one without a folder, and line 0.
struct Frame {
  std::string file, function;
  std::int64_t line = 0;
  friend bool operator==(const Frame&, const Frame&) = default;
};
/// Index into Snapshot::stacks. 0: none recorded.
using StackId = std::uint32_t;

struct Block {
  Bytes address = 0, size = 0;
  Bytes requested = 0;
  BlockState state = BlockState::inactive;
  StackId stack = 0;
};

struct Segment {
  int device = 0;
  Bytes address = 0, bytes = 0;
  std::int64_t stream = 0;
  bool small = false, expandable = false;
  std::pair<std::int64_t, std::int64_t> pool{0, 0};  ///< (0, 0): the default one; others: CUDA graphs, MemPools
  std::vector<Block> blocks;                         ///< by address, filling the segment
};

enum class Action : std::uint8_t {
  alloc,
  free_requested,
  free_completed,
  segment_alloc,
  segment_free,
  segment_map,
  segment_unmap,
  snapshot,
  oom,
  other  ///< of a release that is not known here; changes nothing
};
inline constexpr int kActions = 10;
/// As PyTorch spells it.
std::string_view name(Action);

struct Event {
  Action action = Action::other;
  Bytes address = 0;  ///< oom: what the device had left, device_free
  Bytes bytes = 0;    ///< alloc and frees: as asked for; oom: rounded; segment events: of the segment or the pages
  std::int64_t stream = 0;
  std::int64_t time = 0;  ///< microseconds since 1970; 0: not recorded
  StackId stack = 0;
};

struct Snapshot {
  std::vector<Segment> segments;                              ///< by device and address
  std::vector<std::vector<Event>> traces;                     ///< by device
  std::vector<std::pair<std::string, std::string>> settings;  ///< allocator_settings as text; torch >= 2.3
  std::vector<Frame> frames;
  std::vector<std::vector<std::uint32_t>> stacks{{}};  ///< indices into `frames`, innermost first

  /// Whether a history was recorded: a trace of one event, or of none, only says that the snapshot was taken.
  bool has_history(int device) const;
  /// Devices with segments or a history, rising.
  std::vector<int> devices() const;
};

}  // namespace oomplan::snapshot
