// A program's events, kept: an expansion matches every free with its allocation, which several readers need not do again.
#pragma once
#include <vector>

#include <oomplan/program.hpp>

namespace oomplan {

/// In order; 48 bytes each.
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

/// As expand() over the program that the events are of.
template <class See>
void seen_again(const Events& events, const See& see) {
  for (const Event& e : events)
    if (!see(e)) return;
}

}  // namespace oomplan
