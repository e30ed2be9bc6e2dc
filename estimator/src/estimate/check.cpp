#include "estimate/check.hpp"

#include <algorithm>
#include <numeric>

#include "catalog/catalog.hpp"
#include "estimate/assemble.hpp"
#include "estimate/replayed_class.hpp"
#include "estimate/tape_store.hpp"

namespace oomplan {

Check check(const Job& job, const Catalog* catalog) {
  Assembled a = assemble(job, catalog != nullptr ? *catalog : Catalog::builtin(), TapeStore::shared());
  Check out;
  if (a.estimate.fits()) {
    out.replayed = true;
    std::vector<std::size_t> order(a.classes.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    const auto lack = [&](std::size_t c) { return lack_of(a.estimate.gpus[c]); };
    std::stable_sort(order.begin(), order.end(), [&](std::size_t x, std::size_t y) { return lack(x) > lack(y); });
    for (const std::size_t c : order) {
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
