#include "estimate/check.hpp"

#include <utility>

#include "catalog/catalog.hpp"
#include "estimate/assemble.hpp"
#include "estimate/replayed_class.hpp"
#include "estimate/tape_store.hpp"

namespace oomplan {

namespace {

/// Less than half of the GPU lives. The allocator added 31 % at most to what lives (benchmarks/accuracy/allocator_adds.py: 563
/// classes of GPUs of all kinds of jobs).
bool is_roomy(const GpuAnswer& gpu) { return gpu.usable + lack_of(gpu) <= gpu.usable / 2; }

}  // namespace

Check check(const Job& job, const Catalog* catalog) {
  Assembled a = assemble(job, catalog != nullptr ? *catalog : Catalog::builtin(), TapeStore::shared());
  Check out;
  if (a.estimate.fits()) {
    for (const std::size_t c : by_lack(a)) {
      if (is_roomy(a.estimate.gpus[c])) continue;
      out.replayed = true;
      if (const std::optional<RunsOut> found = runs_out(a, c, job)) {
        out.fragmented = {c, found->phase, found->asked};
        break;
      }
    }
  }
  out.levels = std::move(a.estimate);
  return out;
}

}  // namespace oomplan
