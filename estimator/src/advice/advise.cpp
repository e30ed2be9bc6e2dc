// advise() of a Job: every single change that the knobs call a remedy, judged by a second estimate, strongest first.
#include <algorithm>

#include "advice/trial.hpp"
#include "job/knobs.hpp"

namespace oomplan {

std::vector<Remedy> advise(const Job& job, Effect allow, const Catalog* given) {
  const Catalog& catalog = given != nullptr ? *given : Catalog::builtin();
  TapeStore& store = TapeStore::shared();
  Assembled assembled = assemble(job, catalog, store);
  Judge judge{catalog, store};
  judge.start(assembled, job);
  std::vector<Remedy> out;
  const auto change = [&](const Settings& settings) { return change_natively(job, settings, catalog); };
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

}  // namespace oomplan
