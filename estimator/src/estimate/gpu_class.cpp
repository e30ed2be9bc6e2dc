#include "estimate/gpu_class.hpp"

#include <algorithm>

#include "job/placement.hpp"

namespace oomplan {
namespace {

std::vector<SeatOnGpu> seats_of(const Job& job, const std::vector<RoleRun>& runs, const std::vector<GpuRange>& ranges,
                                std::int64_t gpu) {
  std::vector<SeatOnGpu> out;
  std::size_t processes = 0;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (gpu < ranges[i].first || gpu >= ranges[i].end()) continue;
    const Role& role = *runs[i].role;
    const std::int64_t rank = gpu - ranges[i].first;
    SeatOnGpu s;
    s.role = i;
    const bool megatron = role.engine == EngineKind::megatron;
    s.seat.sender = !role.serves() && !megatron && rank == 0 && role.kind != RoleKind::generator;
    const Layout& l = role.layout();
    const std::int64_t in_stage = std::max<std::int64_t>(1, role.serves() ? l.tensor : l.world());
    s.seat.stage = role.serves() ? rank % (in_stage * l.pipeline) / in_stage : 0;
    // megatron/core/parallel_state.py (0.16.1), order tp-cp-ep-dp-pp: the stages are blocks of ranks
    if (megatron) s.seat.stage = rank / (l.world() / l.pipeline);
    // one process has the GPUs over which a generator's layers lie
    if (role.kind == RoleKind::generator) s.seat.stage = rank % l.pipeline;
    // AReaL: the first rank of every stage sends what the stage has (areal/engine/megatron_engine.py: is_pp_head)
    if (megatron && role.kind == RoleKind::actor) s.seat.sender = rank % (l.world() / l.pipeline) == 0;
    s.process = processes;
    if (role.in_process && !role.serves()) {
      for (const auto& other : out)
        if (job.roles[other.role].name == role.beside) {
          s.process = other.process;
          s.seat.owns_process = false;
          s.seat.with_server = job.roles[other.role].serves();
        }
    }
    if (s.seat.owns_process) ++processes;
    out.push_back(s);
  }
  return out;
}

std::string range_text(const std::vector<std::int64_t>& numbers) {
  std::string out;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t j = i;
    while (j + 1 < numbers.size() && numbers[j + 1] == numbers[j] + 1) ++j;
    if (!out.empty()) out += ",";
    out += std::to_string(numbers[i]);
    if (j > i) out += "-" + std::to_string(numbers[j]);
    i = j + 1;
  }
  return out;
}

}  // namespace

std::vector<GpuClass> gpu_classes(const Job& job, const std::vector<RoleRun>& runs) {
  const auto ranges = placement(job);
  std::int64_t end = 0;
  for (const auto& r : ranges) end = std::max(end, r.end());
  // A class changes only where a range starts, right behind its first rank, or within one replica's stages.
  std::vector<GpuClass> out;
  for (std::int64_t gpu = 0; gpu < end; ++gpu) {
    auto seats = seats_of(job, runs, ranges, gpu);
    if (seats.empty()) continue;
    const auto same = std::find_if(out.begin(), out.end(), [&](const GpuClass& c) { return c.seats == seats; });
    if (same != out.end()) {
      same->gpus.push_back(gpu);
      continue;
    }
    GpuClass c;
    for (const auto& s : seats) c.processes = std::max(c.processes, s.process + 1);
    c.seats = std::move(seats);
    c.gpus = {gpu};
    out.push_back(std::move(c));
  }
  return out;
}

std::string ranks_text(const Job& job, const GpuClass& c) {
  const auto ranges = placement(job);
  std::string out;
  for (const auto& s : c.seats) {
    std::vector<std::int64_t> ranks;
    for (const auto gpu : c.gpus) ranks.push_back(gpu - ranges[s.role].first);
    out += (out.empty() ? "" : ", ") + job.roles[s.role].name + " " + range_text(ranks);
  }
  return out;
}

}  // namespace oomplan
