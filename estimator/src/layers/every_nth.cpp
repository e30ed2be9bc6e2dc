#include "layers/every_nth.hpp"

#include <utility>

namespace oomplan {

SpacedRuns spaced_runs(const Architecture& a, std::int64_t every, bool ends_with) {
  SpacedRuns out{a, {}};
  if (every == 1) {
    out.checkpointed.assign(a.runs.size(), true);
    return out;
  }
  out.architecture.runs.clear();
  const std::int64_t chosen = ends_with ? every - 1 : 0;
  std::int64_t number = 0;  // of the layer, over all runs
  for (const LayerRun& run : a.runs) {
    bool begins = true;
    for (std::int64_t i = 0; i < run.count; ++i, ++number) {
      const bool checkpointed = number % every == chosen;
      if (begins || out.checkpointed.back() != checkpointed) {
        LayerRun part = run;
        part.count = 0;
        out.architecture.runs.push_back(part);
        out.checkpointed.push_back(checkpointed);
        begins = false;
      }
      ++out.architecture.runs.back().count;
    }
  }
  return out;
}

SpacedRuns cut_by(SpacedRuns given, const std::vector<int>& kinds) {
  SpacedRuns out{given.architecture, {}};
  out.architecture.runs.clear();
  std::size_t number = 0;
  for (std::size_t r = 0; r < given.architecture.runs.size(); ++r) {
    const LayerRun& run = given.architecture.runs[r];
    for (std::int64_t i = 0; i < run.count; ++i, ++number) {
      if (i == 0 || kinds[number] != kinds[number - 1]) {
        out.architecture.runs.push_back(run);
        out.architecture.runs.back().count = 0;
        out.checkpointed.push_back(given.checkpointed[r]);
      }
      ++out.architecture.runs.back().count;
    }
  }
  return out;
}

SpacedRuns first_apart(SpacedRuns given, std::int64_t layers) {
  auto& runs = given.architecture.runs;
  for (std::size_t r = 0; r < static_cast<std::size_t>(layers) && r < runs.size(); ++r) {
    if (runs[r].count == 1) continue;
    LayerRun first = runs[r];
    first.count = 1;
    --runs[r].count;
    runs.insert(runs.begin() + static_cast<std::ptrdiff_t>(r), first);
    given.checkpointed.insert(given.checkpointed.begin() + static_cast<std::ptrdiff_t>(r), given.checkpointed[r]);
  }
  return given;
}

}  // namespace oomplan
