#include "search/as_it_stands.hpp"

#include "catalog/catalog.hpp"
#include "search/step_time.hpp"

namespace oomplan {

void put_as_it_stands(Found& found, const Job& job, const Space& space, const Catalog& catalog) {
  if (found.best.empty() || found.best.front().relative_throughput > 0 || found.interrupted || found.as_it_stands) return;
  if (space.gpus && *space.gpus != job.cluster.gpus) return;  // a job of another size
  Candidate now;
  now.job = job;
  now.estimate = estimate(job, &catalog);
  now.relative_step_time = 0;
  const auto seconds = step_seconds(job, catalog, TapeStore::shared());
  const auto best = step_seconds(found.best.front().job, catalog, TapeStore::shared());
  if (seconds && best && *best > 0) now.relative_step_time = *seconds / *best * found.best.front().relative_step_time;
  found.as_it_stands = std::move(now);
}

}  // namespace oomplan
