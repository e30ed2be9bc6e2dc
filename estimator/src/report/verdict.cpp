#include <fmt/format.h>

#include "job/knobs.hpp"
#include "report/format.hpp"
#include "report/report.hpp"

namespace oomplan {

std::string_view version() { return OOMPLAN_VERSION; }

const GpuAnswer* tightest(const Estimate& estimate) {
  const GpuAnswer* found = nullptr;
  Bytes least = 0;
  for (const auto& gpu : estimate.gpus) {
    if (gpu.phases.empty()) continue;
    const Bytes free = gpu.usable - gpu.phases[gpu.worst].usage.capacity_needed;
    if (found == nullptr || free < least) {
      found = &gpu;
      least = free;
    }
  }
  return found;
}

std::vector<Assumed> assumed(const Job& job) {
  std::vector<Assumed> out;
  for (const auto& [key, origin] : job.origins)
    if (origin.kind == Origin::Kind::default_)
      out.push_back({key, find_knob(job, key).knob != nullptr ? get(job, key) : "", &origin});
  return out;
}

std::string verdict(const Estimate& estimate) {
  const GpuAnswer* gpu = tightest(estimate);
  const bool fits = estimate.fits();
  if (gpu == nullptr) return fits ? "fits: the job places nothing on a GPU" : "does not fit";
  const Moment& worst = gpu->phases[gpu->worst];
  const Bytes needed = worst.usage.capacity_needed;
  const std::string who = printable(gpu->ranks) + " (" + printable(gpu->gpu) + ")";
  const std::string where = printable(worst.phase) + (worst.step.empty() ? "" : " (" + printable(worst.step) + ")");
  const std::string bound = worst.bound ? "at most " : "";
  if (!gpu->fits())
    return fmt::format("does not fit: {} needs {}{} of {} usable in {}: {} too much", who, bound, bytes_text(needed),
                       bytes_text(gpu->usable), where, bytes_text(needed - gpu->usable));
  const std::string fullest = fmt::format("the fullest GPU, {}, needs {}{} of {} usable in {}: {} to spare", who, bound,
                                          bytes_text(needed), bytes_text(gpu->usable), where, bytes_text(gpu->usable - needed));
  std::string queue;  // not OOM, but nobody wants to find it out at launch
  for (const auto& server : estimate.servers)
    if (!server.shortage.empty() && !server.refused) queue += (queue.empty() ? "" : ", ") + printable(server.role);
  if (fits) return "fits: " + fullest + (queue.empty() ? "" : "; " + queue + " is short of KV memory");
  for (const auto& server : estimate.servers)
    if (server.refused)
      return "does not fit: the server of " + printable(server.role) + " does not start: " + printable(server.shortage);
  for (const auto& host : estimate.hosts) {
    if (host.usable <= 0 || host.phases.empty() || host.phases[host.worst].second <= host.usable) continue;
    return fmt::format("does not fit: the host memory of node {} needs {} of {} in {}", printable(host.nodes),
                       bytes_text(host.phases[host.worst].second), bytes_text(host.usable),
                       printable(host.phases[host.worst].first));
  }
  return "does not fit; " + fullest;
}

}  // namespace oomplan
