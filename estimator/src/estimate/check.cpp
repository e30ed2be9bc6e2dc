#include "estimate/check.hpp"

#include <algorithm>
#include <numeric>

#include "catalog/catalog.hpp"
#include "estimate/assemble.hpp"
#include "estimate/replayed_class.hpp"
#include "estimate/tape_store.hpp"

namespace oomplan {

namespace {

/// Less than half of the GPU lives. What the allocator adds to that was 31 % at most, of 563 classes of GPUs of all kinds of
/// jobs.
bool is_roomy(const GpuAnswer& gpu) { return gpu.usable + lack_of(gpu) <= gpu.usable / 2; }

}  // namespace

Check check(const Job& job, const Catalog* catalog) {
  Assembled a = assemble(job, catalog != nullptr ? *catalog : Catalog::builtin(), TapeStore::shared());
  Check out;
  if (a.estimate.fits()) {
    std::vector<std::size_t> order(a.classes.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto lack = [&](std::size_t c) { return lack_of(a.estimate.gpus[c]); };
    std::stable_sort(order.begin(), order.end(), [&](std::size_t x, std::size_t y) { return lack(x) > lack(y); });
    for (const std::size_t c : order) {
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
