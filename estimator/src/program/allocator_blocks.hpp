// What the allocator's books are made of: blocks in segments, and the lanes in which free ones are looked up.
#pragma once
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "program/allocator.hpp"
#include "program/free_index.hpp"

namespace oomplan {

struct CachingAllocator::Block {
  Bytes address = 0;
  Bytes size = 0;
  Bytes requested = 0;
  Block* prev = nullptr;  // neighbours in the segment or range
  Block* next = nullptr;
  Lane* lane = nullptr;       // nullptr: unused storage
  Bytes range = 0;            // expandable: where the range starts; pages are counted from there
  std::int64_t freed_at = 0;  // on the clock of garbage collection
  std::int32_t owner = -1;    // scratch of shape()
  std::uint32_t number = 0;   // of its storage
  bool allocated = false;
  bool pending = false;
  bool mapped = true;
  bool expandable = false;

  bool whole() const { return prev == nullptr && next == nullptr; }
};

/// Free memory is kept apart per (pool, small or large, stream): rule 2.
struct CachingAllocator::Lane {
  int pool = 0;
  bool small = false;
  int stream = 0;
  FreeIndex<Block> free;
  std::vector<Block*> unmapped;  // gaps of expandable ranges, by address
};

struct CachingAllocator::Arena {
  std::array<std::vector<std::unique_ptr<Lane>>, 2> lanes;  // [small][stream]
  bool retired = false;
};

}  // namespace oomplan
