#include "snapshot/snapshot.hpp"

#include <algorithm>
#include <array>

namespace oomplan::snapshot {

std::string_view name(Action action) {
  constexpr std::array<std::string_view, kActions> kNames{"alloc",        "free_requested", "free_completed", "segment_alloc",
                                                          "segment_free", "segment_map",    "segment_unmap",  "snapshot",
                                                          "oom",          "other"};
  return kNames[static_cast<std::size_t>(action)];
}

bool Snapshot::has_history(int device) const {
  return device >= 0 && static_cast<std::size_t>(device) < traces.size() && traces[static_cast<std::size_t>(device)].size() > 1;
}

std::vector<int> Snapshot::devices() const {
  std::vector<int> out;
  for (const auto& segment : segments) out.push_back(segment.device);
  for (std::size_t i = 0; i < traces.size(); ++i)
    if (!traces[i].empty()) out.push_back(static_cast<int>(i));
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

}  // namespace oomplan::snapshot
