// advise() of a Job: every single change that the knobs call a remedy, judged by a second estimate, strongest first.
#include <algorithm>

#include "advice/known.hpp"
#include "advice/trial.hpp"
#include "job/knobs.hpp"

namespace oomplan {

namespace {

std::vector<Remedy> remedies(const Job& job, Effect allow, const Catalog* given, const Estimate* judged) {
  const Catalog& catalog = given != nullptr ? *given : Catalog::builtin();
  TapeStore& store = TapeStore::shared();
  Assembled assembled = assemble(job, catalog, store);
  const Before before = replayed_before(assembled, job, judged);
  ReplayBudget budget;
  std::vector<Remedy> out;
  const auto change = [&](const Settings& settings) { return change_natively(job, settings, catalog); };
  const auto consider = [&](const Role* role) {
    for (const auto& k : knobs()) {
      if (k.remedy.empty() || k.effect > allow || (role == nullptr) != (k.of == KnobOf::job)) continue;
      if (role != nullptr && !applies(k, *role)) continue;
      if (auto r = best_of(job, role, k, before, catalog, store, budget, change)) out.push_back(std::move(r->remedy));
    }
  };
  consider(nullptr);
  for (const auto& role : job.roles) consider(&role);
  std::stable_sort(out.begin(), out.end(),
                   [](const Remedy& a, const Remedy& b) { return std::pair(a.fits, a.gain) > std::pair(b.fits, b.gain); });
  return out;
}

}  // namespace

std::vector<Remedy> advise(const Job& job, Effect allow, const Catalog* given) { return remedies(job, allow, given, nullptr); }
std::vector<Remedy> remedies_for(const Job& job, Effect allow, const Catalog* given, const Estimate& judged) {
  return remedies(job, allow, given, &judged);
}

}  // namespace oomplan
