// Two replays of the same program, written down in two ways.
#pragma once
#include <doctest/doctest.h>

#include "program/replay.hpp"

namespace oomplan {

inline void check_same(const Replay& x, const Replay& y) {
  CHECK(x.ok == y.ok);
  CHECK(x.failed_event == y.failed_event);
  CHECK(x.failed_phase == y.failed_phase);
  CHECK(x.failed_bytes == y.failed_bytes);
  CHECK(x.device_peak == y.device_peak);
  CHECK(x.reserved_end == y.reserved_end);
  CHECK(x.outside_end == y.outside_end);
  CHECK(x.retries == y.retries);
  CHECK(x.refused == y.refused);
  REQUIRE(x.phases.size() == y.phases.size());
  for (std::size_t i = 0; i < x.phases.size(); ++i) {
    CHECK(x.phases[i].retries == y.phases[i].retries);
    CHECK(x.phases[i].allocated_peak == y.phases[i].allocated_peak);
    CHECK(x.phases[i].reserved_peak == y.phases[i].reserved_peak);
    CHECK(x.phases[i].device_peak == y.phases[i].device_peak);
  }
}

/// On the smallest device that does, on one that does not, and on others.
inline void check_same_everywhere(const FlatProgram& one, const FlatProgram& other, AllocatorSettings s, Bytes more) {
  const Bytes need = needed_capacity(other, s);
  CHECK(needed_capacity(one, s) == need);
  for (const Bytes device : {need, need - 1, need + more, need * 2, need / 2}) {
    s.device_limit = device;
    check_same(replay(one, s), replay(other, s));
  }
}

}  // namespace oomplan
