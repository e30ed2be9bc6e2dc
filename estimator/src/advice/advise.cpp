// advise() of a Job: every single change that the knobs call a remedy, judged by a second estimate, strongest first.
#include <algorithm>

#include "advice/remedies.hpp"
#include "advice/trial.hpp"
#include "job/knobs.hpp"

namespace oomplan {

namespace {

std::vector<Remedy> single_changes(const Job& job, Effect allow, Judge& judge) {
  std::vector<Remedy> out;
  const auto change = [&](const Settings& settings) { return change_natively(job, settings, judge.catalog); };
  const auto consider = [&](const Role* role) {
    for (const auto& k : knobs()) {
      if (k.remedy.empty() || k.effect > allow || (role == nullptr) != (k.of == KnobOf::job)) continue;
      if (role != nullptr && !applies(k, *role)) continue;
      if (auto r = best_of(job, role, k, judge, change)) out.push_back(std::move(r->remedy));
    }
  };
  consider(nullptr);
  for (const auto& role : job.roles) consider(&role);
  std::stable_sort(out.begin(), out.end(),
                   [](const Remedy& a, const Remedy& b) { return std::pair(a.fits, a.gain) > std::pair(b.fits, b.gain); });
  return out;
}

const Catalog& catalog_of(const Catalog* given) { return given != nullptr ? *given : Catalog::builtin(); }

}  // namespace

std::vector<Remedy> advise(const Job& job, Effect allow, const Catalog* given) {
  Judge judge(catalog_of(given), TapeStore::shared());
  Assembled assembled = assemble(job, judge.catalog, judge.tapes);
  judge.start(assembled, job);
  return single_changes(job, allow, judge);
}

Remedies remedies_of(const Job& job, Effect allow, const Catalog* given, const Estimate& judged) {
  Judge judge(catalog_of(given), TapeStore::shared());
  judge.most_events = kMostEventsOfRemedies;
  judge.start(assemble(job, judge.catalog, judge.tapes), judged);
  std::vector<Remedy> all = single_changes(job, allow, judge);
  return {std::move(all), !judge.gave_up};
}

}  // namespace oomplan
