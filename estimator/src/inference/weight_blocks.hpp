// What PyTorch's caching allocator makes of weights: they are taken one by one while the model is built, and stay. Internal to
// inference/.
//
// A request above 1 MiB takes the smallest rest that holds it, else a new segment: of 20 MiB, or from 10 MiB on of its own size
// in steps of 2 MiB. What is left over is cut off as a rest when it is more than 1 MiB; else the request keeps it, and
// torch.cuda.memory_allocated counts it. Blocks of max_split_size and more are never cut (c10/cuda/CUDACachingAllocator.cpp, 2.9:
// get_allocation_size, get_free_block, should_split). program/allocator.hpp is the whole allocator; nothing is freed here, so
// that a layer which leaves the rests as it found them need not be played again.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <oomplan/units/bytes.hpp>

namespace oomplan {

class WeightBlocks {
 public:
  struct Totals {
    Bytes asked = 0;
    Bytes counted = 0;   ///< whole blocks: torch.cuda.memory_allocated
    Bytes reserved = 0;  ///< whole segments: what the device lacks
  };
  /// `smallest`: of the requests above 1 MiB; rests below it are of no use. `max_split` 0: no such limit.
  explicit WeightBlocks(Bytes smallest, Bytes max_split = 0) : smallest_(smallest), max_split_(max_split) {}
  void take(Bytes);
  /// The same tensors `count` times, one layer after the other.
  void layers(std::span<const Bytes> tensors, std::int64_t count);
  const Totals& totals() const { return totals_; }

 private:
  /// Ascending. More than these are never useful at once: the smallest is forgotten.
  struct Rests {
    std::array<Bytes, 128> sizes{};
    std::size_t count = 0;
    bool operator==(const Rests&) const = default;
    void put(Bytes);
    Bytes take_at(std::size_t);
  };
  bool cuts(Bytes block, Bytes request) const;

  Bytes smallest_, max_split_;
  Rests rests_;
  Totals totals_;
};

}  // namespace oomplan
