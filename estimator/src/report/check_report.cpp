#include "report/check_report.hpp"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "report/format.hpp"
#include "report/report.hpp"
#include "units/json_text.hpp"

namespace oomplan {
namespace {

const GpuAnswer* told(const Check& c) { return c.fragmented ? &c.levels.gpus[c.fragmented->gpu] : tightest(c.levels); }

std::string who(const GpuAnswer& gpu) { return fmt::format("{} ({})", printable(gpu.ranks), printable(gpu.gpu)); }

}  // namespace

std::string to_text(const Check& c) {
  const GpuAnswer* gpu = told(c);
  if (gpu == nullptr || (!c.fits() && !c.fragmented && gpu->fits())) return verdict(c.levels);  // a server or a host refuses
  if (c.fragmented)
    return fmt::format("does not fit: {} runs out of its {} in {}, at a request of {}", who(*gpu), bytes_text(gpu->usable),
                       printable(c.fragmented->phase), bytes_text(c.fragmented->asked));
  const Moment& worst = gpu->phases[gpu->worst];
  return fmt::format("{}{} needs at least {} of {} usable in {}",
                     c.fits() ? "fits: the fullest GPU, " : "does not fit: ", who(*gpu) + (c.fits() ? "," : ""),
                     bytes_text(worst.usage.capacity_needed), bytes_text(gpu->usable), printable(worst.phase));
}

std::string to_json(const Check& c) {
  nlohmann::ordered_json out;
  out["schema"] = "oomplan.check/1";
  out["oomplan_version"] = std::string(version());
  out["fits"] = c.fits();
  out["text"] = to_text(c);
  out["replayed"] = c.replayed;
  if (const GpuAnswer* gpu = told(c); gpu != nullptr) {
    const Moment& worst = gpu->phases[gpu->worst];
    out["ranks"] = gpu->ranks;
    out["gpu"] = gpu->gpu;
    out["phase"] = c.fragmented ? c.fragmented->phase : worst.phase;
    out["usable_bytes"] = gpu->usable;
    out["needed_at_least_bytes"] = worst.usage.capacity_needed;
  }
  return json_text(out) + "\n";
}

}  // namespace oomplan
