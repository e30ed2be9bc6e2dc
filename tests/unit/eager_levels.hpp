// Highest levels of what the simulator ran eagerly, without a tape: forward, what lives between, backward.
#pragma once
#include <algorithm>

#include "layers/eager.hpp"

namespace oomplan {

struct Levels {
  Bytes forward = 0, kept = 0, backward = 0;
};
inline Levels levels_of(const Eager& g, const TokenCounts& counts) {
  Levels out;
  Bytes level = 0;
  bool backward = false;
  for (const EagerEvent& e : g.events) {
    if (e.kind == EagerEvent::Kind::gradient) continue;
    if (e.backward && !backward) out.kept = out.backward = level;
    backward = backward || e.backward;
    const Storage& s = g.storages[static_cast<std::size_t>(e.storage)];
    const Bytes bytes = elements(s.shape).value(counts) * row(s.dtype).bits / 8;
    level += e.kind == EagerEvent::Kind::alloc ? bytes : -bytes;
    (backward ? out.backward : out.forward) = std::max(backward ? out.backward : out.forward, level);
  }
  return out;
}

}  // namespace oomplan
