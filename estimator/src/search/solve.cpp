#include "search/solve.hpp"

#include <algorithm>
#include <functional>

#include "estimate/assemble.hpp"
#include "estimate/explain.hpp"
#include "estimate/fit_probability.hpp"
#include "job/validate.hpp"
#include "units/interruption.hpp"

namespace oomplan {
namespace {

/// One thing that can be maximised.
struct Aim {
  std::string_view name;
  std::vector<std::int64_t> (*values)(const Job&);
  bool (*put)(Job&, std::int64_t);  ///< false: the job has no such setting
};

std::vector<std::int64_t> steps(std::int64_t first, std::int64_t last, std::int64_t step) {
  std::vector<std::int64_t> out;
  for (std::int64_t v = first; v <= last; v += step) out.push_back(v);
  return out;
}

template <class Put>
bool on_trainers(Job& job, Put&& put) {
  bool any = false;
  for (auto& r : job.roles)
    if (!r.serves()) {
      put(r.trainer);
      any = true;
    }
  return any;
}
template <class Put>
bool on_servers(Job& job, Put&& put) {
  bool any = false;
  for (auto& r : job.roles)
    if (r.serves()) {
      put(r.server);
      any = true;
    }
  return any;
}

constexpr std::int64_t kMostTokens = 512 * 1024, kMostLength = 256 * 1024, kMostRequests = 4096;

const Aim kAims[] = {
    {"tokens",
     [](const Job& j) {
       return steps(round_up(std::max<std::int64_t>(1024, j.prompt_tokens + j.response_tokens), 1024), kMostTokens, 1024);
     },
     [](Job& j, std::int64_t v) { return on_trainers(j, [v](Trainer& t) { t.tokens_per_micro_batch = v; }); }},
    {"fraction", [](const Job&) { return steps(5, 98, 1); },
     [](Job& j, std::int64_t v) { return on_servers(j, [v](Server& s) { s.memory_fraction = static_cast<double>(v) / 100; }); }},
    {"concurrency", [](const Job&) { return steps(8, kMostRequests, 8); },
     [](Job& j, std::int64_t v) { return on_servers(j, [v](Server& s) { s.concurrency = v; }); }},
    {"length", [](const Job& j) { return steps(1024, kMostLength - j.prompt_tokens, 1024); },
     [](Job& j, std::int64_t v) {
       j.response_tokens = v;
       on_trainers(j, [&](Trainer& t) {
         t.tokens_per_micro_batch = std::max(t.tokens_per_micro_batch, round_up(j.prompt_tokens + v, 1024));
       });
       return true;
     }},
};

/// Concurrency is bounded by the cache, not by a crash: it "fits" when no request has to wait.
bool enough(const Estimate& e, std::string_view aim) {
  if (!e.fits()) return false;
  return aim != "concurrency" ||
         std::all_of(e.servers.begin(), e.servers.end(), [](const ServerAnswer& s) { return s.shortage.empty(); });
}

}  // namespace

Found solve(const Job& job, const Space& space, int keep, const Catalog& catalog, const std::stop_token& stop,
            const Admit& admit) {
  Found found;
  Job base = job;
  if (space.gpus) base.cluster.gpus = *space.gpus;
  const Aim* aim = nullptr;
  for (const auto& a : kAims)
    if (a.name == space.maximise) aim = &a;
  if (aim == nullptr)
    throw InputError(Problem{{"", 0, 0, "--max"}, "'" + space.maximise + "'", "tokens, fraction, concurrency or length", "", ""});
  TapeStore store;
  ProcessStore processes;
  std::vector<Candidate> fitting;
  until_interrupted(stop, [&] {
    for (const auto value : aim->values(base)) {
      if (stop.stop_requested()) break;
      Candidate c;
      c.job = base;
      if (!aim->put(c.job, value))
        throw InputError(Problem{{"", 0, 0, "--max"},
                                 "'" + space.maximise + "'",
                                 "a setting that this job has",
                                 "",
                                 "it needs a role that the job does not have"});
      if (!problems(c.job, catalog).empty()) continue;
      ++found.judged;
      c.estimate = assemble(c.job, catalog, store).estimate;
      if (!enough(c.estimate, aim->name)) continue;
      ++found.fitting;
      fitting.push_back(std::move(c));
    }
    // The largest first; the replay decides.
    while (!fitting.empty() && static_cast<int>(found.best.size()) < keep && !stop.stop_requested()) {
      Candidate c = std::move(fitting.back());
      fitting.pop_back();
      if (admit && !admit(c)) continue;
      judge_probability(c.estimate, c.job);  // by levels: the replay can only lower it
      if (c.estimate.fit_probability.value_or(1) < space.min_probability) {
        ++found.unlikely;
        continue;
      }
      auto explained = explain_worst_if_it_fits(c.job, catalog, store, processes);
      if (!explained) continue;
      c.estimate = *std::move(explained);
      if (!enough(c.estimate, aim->name)) continue;
      if (c.estimate.fit_probability.value_or(1) < space.min_probability) {
        ++found.unlikely;
        continue;
      }
      if (!admit) describe_changes(base, c);
      found.best.push_back(std::move(c));
    }
  });
  return found;
}

}  // namespace oomplan
