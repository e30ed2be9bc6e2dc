// A program's events, kept or counted.
#pragma once
#include <vector>

#include <oomplan/program.hpp>

namespace oomplan {

/// In order.
using Events = std::vector<Event>;
/// Throws what expand() throws.
inline Events events_of(const Program& program) {
  Events out;
  expand(program, [&](const Event& e) {
    out.push_back(e);
    return true;
  });
  return out;
}

/// How many events an expansion has, without one; `most` when there are more. REQUIRES: most > 0.
std::int64_t count_events(const Program& program, std::int64_t most);

}  // namespace oomplan
