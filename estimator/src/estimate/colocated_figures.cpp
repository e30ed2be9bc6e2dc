#include <algorithm>

#include "estimate/assemble.hpp"
#include "estimate/figures.hpp"
#include "program/replay.hpp"

namespace oomplan {
namespace {

/// Weights and cache of a server that can sleep: torch's statistics count them as allocated even while they are unmapped.
Bytes pausable(const ServerPlan& p) {
  if (!p.pausable) return 0;
  return p.weights + p[ServerTensor::kv_cache] + p[ServerTensor::state_cache];
}

}  // namespace

ColocatedFigures colocated_figures(const Job& job, int iterations, const Catalog& catalog) {
  const Assembled a = assemble(job, catalog, TapeStore::shared());
  if (a.classes.size() != 1 || a.classes[0].processes != 1 || a.classes[0].gpus.size() != 1)
    throw InputError(Problem{{}, "a job of several GPUs or processes", "one process on one GPU", "", ""});
  Bytes mapped = 0;
  for (const auto& server : a.folds[0].servers)
    if (server) mapped += pausable(*server);
  const Gpu& gpu = catalog.gpu(job.cluster.gpu);
  AllocatorSettings settings;
  settings.expandable_segments = job.expandable_segments;
  const Replay r = replay(write_process(a, 0, 0, kReplayedMicroBatches, iterations), settings);
  const Replay start = replay(write_process(a, 0, 0, kReplayedMicroBatches, 0), settings);
  ColocatedFigures out;
  out.asleep = start.reserved_end + start.outside_end;
  out.kept_back = gpu.smi_mib * kMiB - gpu.usable;
  for (const auto& p : r.phases)
    out.phases.push_back({p.phase, p.allocated_peak + mapped, p.reserved_peak + mapped, p.device_peak});
  return out;
}

}  // namespace oomplan
