#include "search/serving.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include <fmt/format.h>
#include <oomplan/units/errors.hpp>

#include "estimate/explain.hpp"
#include "estimate/fold.hpp"
#include "estimate/role_program.hpp"
#include "inference/in_service.hpp"
#include "job/validate.hpp"
#include "search/serving_points.hpp"
#include "search/serving_rate.hpp"
#include "search/solve.hpp"
#include "units/interruption.hpp"

namespace oomplan {
namespace {

/// Tokens of a request where the job does not say them.
constexpr std::int64_t kUsualPrompt = 1024, kUsualResponse = 1024;

struct Judged {
  ServingPoint point;
  bool fits = false;
  bool waits = true;  ///< some of those asked for
  double rate = 0;
  std::int64_t tokens = 0;  ///< of all replicas
  int changes = 0;
  Bytes missing = 0;
  std::string why;
  /// What is nearly equal is ordered by how little is changed.
  auto rank() const {
    const auto steps = [](double value, double of) { return value > 0 ? -std::llround(std::log(value) / of) : 0; };
    return std::tuple(waits, steps(rate, 0.01), steps(static_cast<double>(tokens), 0.05), changes, -rate, -tokens);
  }
};

class ServingSearch {
 public:
  ServingSearch(const Job& job, const Space& space, const Catalog& catalog, const std::stop_token& stop)
      : job_(job),
        stop_(stop),
        role_(job_.roles[0]),
        own_(role_.server),
        gpu_(catalog.gpu(job.cluster.gpu)),
        points_(job, space, catalog) {
    TapeStore store;
    base_ = resolve_roles(job_, catalog, store).at(0).point;
    cost_ = cost_of(*role_.architecture);
    timeline_ = timeline_of(job_);
    usable_ = gpu_.usable - job_.cluster.others;
  }

  void run(std::int64_t gpus) {
    points_.each(gpus, [&](const ServingPoint& p) {
      if (!stop_.stop_requested()) largest_fraction(p);
    });
  }
  const ServingPoints& points() const { return points_; }

  /// Best of each shape, best first.
  std::vector<Judged> best() const {
    std::vector<Judged> out;
    for (const auto& [shape, judged] : best_) out.push_back(judged);
    std::sort(out.begin(), out.end(), [](const Judged& a, const Judged& b) { return a.rank() < b.rank(); });
    return out;
  }
  std::int64_t judged() const { return judged_; }
  std::int64_t fitting() const { return fitting_; }
  const Judged& nearest() const { return nearest_; }

  Judged judge(const ServingPoint& p) const {
    const ServingVariant& v = points_.variants()[p.variant];
    ServerPoint at = base_;
    at.tensor = p.tensor;
    at.pipeline = p.pipeline;
    at.expert = p.expert;
    at.attention_data = p.attention_data;
    at.fraction = p.fraction;
    at.max_running = p.max_running;
    at.max_model_len = p.max_model_len;
    at.batched_tokens = p.batched;
    at.eager = p.eager;
    at.occupied = job_.cluster.others;
    const std::int64_t asked = ceil_div(own_.concurrency, p.groups);
    at.sequences = asked;
    Judged out;
    out.point = p;
    ServerPlan smallest;
    for (at.stage = 0; at.stage < p.pipeline; ++at.stage) {
      ServerPlan plan_here = plan(v.model, v.facts, at);
      if (plan_here.refusal != ServerRefusal::none)
        return refused(out, std::max<Bytes>(1, plan_here.missing), to_text(plan_here));
      if (const Bytes need = need_of(plan_here); need > usable_) return refused(out, need - usable_, "the device is too small");
      if (at.stage == 0 || plan_here.kv_tokens < smallest.kv_tokens) smallest = plan_here;
    }
    at.stage = 0;
    out.fits = true;
    out.tokens = smallest.kv_tokens * p.groups;
    out.changes = points_.changes_of(p);
    rate(p, v, at, smallest, asked, out);
    return out;
  }

 private:
  void largest_fraction(ServingPoint p) {
    for (const double fraction : points_.fractions()) {
      p.fraction = fraction;
      ++judged_;
      const Judged now = judge(p);
      if (!now.fits) {
        if (nearest_.why.empty() || now.missing < nearest_.missing) nearest_ = now;
        continue;
      }
      ++fitting_;
      const auto found = best_.find(p.shape());
      if (found == best_.end() || now.rank() < found->second.rank()) best_[p.shape()] = now;
      return;
    }
  }

  static Judged refused(Judged out, Bytes missing, std::string why) {
    out.missing = missing;
    out.why = std::move(why);
    return out;
  }

  void rate(const ServingPoint& p, const ServingVariant& v, const ServerPoint& at, const ServerPlan& plan_here,
            std::int64_t asked, Judged& out) const {
    const std::int64_t prompt = job_.prompt_tokens > 0 ? job_.prompt_tokens : kUsualPrompt;
    const std::int64_t response = job_.response_tokens > 0 ? job_.response_tokens : kUsualResponse;
    const std::int64_t most = asked > 0 ? asked : plan_here.max_running;
    ServiceLoad load{most, prompt, response, job_.samples_per_prompt, own_.share_prompts};
    const auto service = in_service(v.model, v.facts, at, plan_here, load);
    const std::int64_t held_together = service ? std::max<std::int64_t>(1, std::min(service->at_once, service->to_the_end)) : 1;
    out.waits = asked > 0 && (!service || service->waiting > 0 || service->given_up > 0);
    ServingRateLoad l;
    l.replicas = p.groups;
    l.tensor = std::max<std::int64_t>(1, p.tensor * p.data / p.groups);
    l.meets = p.attention_data > 1;
    l.pipeline = p.pipeline;
    l.layers = role_.architecture->layers();
    l.running = held_together;
    l.prompt = prompt;
    l.response = response;
    l.samples = own_.share_prompts ? job_.samples_per_prompt : 1;
    l.weights = plan_here.weights;
    l.token_bytes = plan_here.token_bytes;
    l.eager = p.eager;
    out.rate = tokens_per_second(cost_, l, gpu_);
  }

  Bytes need_of(const ServerPlan& p) const {
    PeakRecorder r;
    ProcessState state;
    Bytes need = 0;
    ServerProgram<PeakRecorder> program(r, p, nullptr, [](PhaseKind) {});
    for (const auto* steps : {&timeline_.init, &timeline_.iteration})
      for (const auto& step : *steps) {
        r = PeakRecorder();
        program.step(step.kind);
        if (r.span().events > 0) need = std::max(need, state.level + r.span().peak);
        state.pass(r.span());
      }
    return need;
  }

  const Job& job_;
  const std::stop_token& stop_;
  const Role& role_;
  const Server& own_;
  const Gpu& gpu_;
  ServerPoint base_;
  ModelCost cost_;
  Timeline timeline_;
  Bytes usable_ = 0;
  ServingPoints points_;
  std::map<decltype(ServingPoint().shape()), Judged> best_;
  Judged nearest_;
  std::int64_t judged_ = 0, fitting_ = 0;
};

/// A candidate as it was judged at its own fraction, and replayed.
struct Replayed {
  Judged judged;
  Candidate candidate;
};

/// The first of lower fractions that fits with the probability that is asked for. `unlikely`: whether one fits with less.
std::optional<Replayed> replayed(const ServingSearch& search, ServingPoint p, const Job& from, const Catalog& catalog,
                                 double min_probability, TapeStore& store, ProcessStore& processes, const Admit& admit,
                                 const std::stop_token& stop, bool& unlikely) {
  constexpr int kTries = 6;
  std::optional<Replayed> out;
  int tries = 0;
  for (const double fraction : search.points().fractions()) {
    if (fraction > p.fraction) continue;
    if (++tries > kTries || stop.stop_requested()) break;
    p.fraction = fraction;
    Replayed now{search.judge(p), {}};
    if (!now.judged.fits) break;
    Candidate& c = now.candidate;
    c.job = search.points().job_of(p);
    if (admit ? !admit(c) : !problems(c.job, catalog).empty()) return std::nullopt;
    auto estimate = explain_worst_if_it_fits(c.job, catalog, store, processes);
    if (!estimate || !estimate->fits()) continue;
    c.estimate = *std::move(estimate);
    if (c.estimate.fit_probability.value_or(1) < min_probability) {
      unlikely = true;
      continue;
    }
    out = std::move(now);
    break;
  }
  if (out && !admit) describe_changes(from, out->candidate);
  return out;
}

Job with_gpus(const Job& job, const Space& space) {
  Job out = job;
  if (!space.gpus) return out;
  out.cluster.gpus = *space.gpus;
  out.cluster.gpus_per_node = std::min<std::int64_t>(8, *space.gpus);
  return out;
}

}  // namespace

bool serves_alone(const Job& job) { return job.roles.size() == 1 && job.roles[0].serves(); }

Found search_serving(const Job& from, const Space& space, int keep, const Catalog& catalog, const std::stop_token& stop,
                     const Admit& admit) {
  const Job job = with_gpus(from, space);
  Found found;
  ServingSearch search(job, space, catalog, stop);
  search.run(job.cluster.gpus);
  found.judged = search.judged();
  found.fitting = search.fitting();
  TapeStore store;
  ProcessStore processes;
  std::vector<Replayed> all;
  until_interrupted(stop, [&] {
    for (const Judged& j : search.best()) {
      if (static_cast<int>(all.size()) >= keep || stop.stop_requested()) break;
      bool unlikely = false;
      if (auto one = replayed(search, j.point, from, catalog, space.min_probability, store, processes, admit, stop, unlikely))
        all.push_back(*std::move(one));
      else if (unlikely)
        ++found.unlikely;
    }
  });
  std::sort(all.begin(), all.end(), [](const Replayed& a, const Replayed& b) { return a.judged.rank() < b.judged.rank(); });
  double best = 0;
  for (const Replayed& one : all) best = std::max(best, one.judged.rate);
  for (Replayed& one : all) {
    one.candidate.relative_throughput = best > 0 ? one.judged.rate / best : 1;
    one.candidate.relative_step_time = one.judged.rate > 0 ? best / one.judged.rate : 1;
    found.best.push_back(std::move(one.candidate));
  }
  if (!found.best.empty() || stop.stop_requested()) return found;
  if (found.unlikely > 0)
    found.limits = {{"", "", 0, fmt::format("what fits does so with a probability below {:g}", space.min_probability)}};
  else
    found.limits = {{job.roles[0].name + ".start", "", search.nearest().missing, search.nearest().why}};
  constexpr std::int64_t kMost = 64;
  for (std::int64_t n = job.cluster.gpus * 2; n <= kMost && !found.smallest_gpus && !stop.stop_requested(); n *= 2) {
    Space larger = space;
    larger.gpus = n;
    const Job there = with_gpus(from, larger);
    ServingSearch more(there, larger, catalog, stop);
    more.run(n);
    if (more.fitting() > 0) found.smallest_gpus = n;
  }
  return found;
}

}  // namespace oomplan
