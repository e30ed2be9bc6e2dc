// Expandable segments that a program switches while it runs: what a history shows of it.
#include <doctest/doctest.h>

#include <vector>

#include "program/allocator.hpp"
#include "snapshot/switches.hpp"

using namespace oomplan;
using namespace oomplan::snapshot;

namespace {

snapshot::Event event(Action action, Bytes address, Bytes bytes) {
  snapshot::Event e;
  e.action = action;
  e.address = address;
  e.bytes = bytes;
  return e;
}

}  // namespace

TEST_CASE("switches: a segment shows them off, a block in mapped pages on, one in an old segment what stands around it") {
  const std::vector<snapshot::Event> trace{
      event(Action::segment_alloc, 0x1000, 0x1000), event(Action::alloc, 0x1000, 0x200),  // off
      event(Action::alloc, 0x1200, 0x200),                                                // between off and on
      event(Action::segment_map, 0x8000, 0x1000),   event(Action::alloc, 0x8000, 0x200),  // on
      event(Action::alloc, 0x1400, 0x200),                                                // between on and on
      event(Action::alloc, 0x8200, 0x200),                                                // on
      event(Action::alloc, 0x1600, 0x200),                                                // behind all that shows it
  };
  SegmentSwitch found(trace, true);
  CHECK_FALSE(found.at(1));
  CHECK_FALSE(found.at(2));
  CHECK(found.at(4));
  CHECK(found.at(5));
  CHECK(found.at(6));
  CHECK_FALSE(found.at(7));
  SegmentSwitch alone({trace.begin(), trace.begin() + 3}, true);  // one kind: as the settings say
  CHECK(alone.at(2));
}

TEST_CASE("switches: pages of expandable segments are of no use to a request of a fixed one, and stay") {
  CachingAllocator allocator(AllocatorSettings{.expandable_segments = true});
  auto* block = allocator.allocate(100 * kMiB, 0);
  allocator.free(block);
  allocator.set_expandable_segments(false);
  block = allocator.allocate(50 * kMiB, 0);
  CHECK(allocator.counters().reserved == 150 * kMiB);
  allocator.set_expandable_segments(true);
  CHECK(CachingAllocator::address(allocator.allocate(60 * kMiB, 0)) != CachingAllocator::address(block));
  CHECK(allocator.counters().reserved == 150 * kMiB);
  allocator.empty_cache();
  CHECK(allocator.counters().reserved == 50 * kMiB + 60 * kMiB);
}
