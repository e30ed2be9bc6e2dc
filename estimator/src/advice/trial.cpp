#include "advice/trial.hpp"

#include <algorithm>
#include <cmath>

#include "estimate/explain.hpp"
#include "estimate/replayed_class.hpp"
#include "job/follow.hpp"
#include "job/knobs.hpp"
#include "job/validate.hpp"
#include "job/workload.hpp"
#include "layout/letters.hpp"
#include "layout/rules.hpp"
#include "units/sizes.hpp"

namespace oomplan {
namespace {

constexpr Bytes kWorthSaying = kMiB;
constexpr const char* kStays = "stays on the GPU between phases, so that the host need not hold it";

/// One degree of Megatron's raised at a time, data parallelism lowered for it. What does not divide is refused where jobs are
/// checked.
std::vector<std::string> megatron_layouts(const Layout& own, std::int64_t gpus_per_node) {
  std::vector<std::string> out;
  if (own.hybrid) return out;
  constexpr std::int64_t kMostStages = 16, kMostContext = 16;
  for (const auto& [degree, most] :
       {std::pair{&Layout::tensor, gpus_per_node}, {&Layout::pipeline, kMostStages}, {&Layout::context, kMostContext}})
    for (std::int64_t n = 2; n <= most; n *= 2) {
      Layout l = own;
      if (n <= own.*degree || (own.data * own.*degree) % n != 0) continue;
      l.data = own.data * own.*degree / n;
      l.*degree = n;
      out.push_back(letters(l));
    }
  return out;
}

std::vector<std::string> layouts(const Role& role, std::int64_t gpus_per_node) {
  const Mixer& m = role.architecture->runs.front().layer.mixer;
  const ModelShape shape{m.heads, m.kv_heads, 0, role.architecture->layers()};
  const Layout& own = role.layout();
  const std::int64_t world = own.world();
  std::vector<std::string> out;
  if (role.serves()) {
    for (const auto t : tensor_degrees(world, shape))
      if (world % t == 0) out.push_back("d" + std::to_string(world / t) + "t" + std::to_string(t));
    return out;
  }
  if (role.engine == EngineKind::megatron) return megatron_layouts(own, gpus_per_node);
  const std::int64_t split = std::max<std::int64_t>(1, own.tensor);
  const std::string kept = split > 1 ? "t" + std::to_string(split) : "";
  for (const auto c : ulysses_degrees(world / split, shape))
    out.push_back("d" + std::to_string(world / split / c) + kept + "c" + std::to_string(c));
  return out;
}

}  // namespace

Bytes excess(const Estimate& e, std::string_view role) {
  Bytes most = -(Bytes{1} << 60);
  for (const auto& g : e.gpus) {
    const auto runs = [&](const Moment& m) { return role.empty() || m.role == role; };
    if (std::any_of(g.phases.begin(), g.phases.end(), runs))
      most = std::max(most, g.phases[g.worst].usage.capacity_needed - g.usable);
  }
  return most;
}

namespace {

Bytes host_excess(const Estimate& e) {
  Bytes most = -(Bytes{1} << 60);
  for (const HostAnswer& h : e.hosts)
    if (h.usable > 0 && h.worst < h.phases.size()) most = std::max(most, h.phases[h.worst].second - h.usable);
  return most;
}

}  // namespace

Bytes Judge::lacks(const Estimate& e, std::string_view role) const { return before.of_host ? host_excess(e) : excess(e, role); }

void Judge::start(Assembled& assembled, const Job& job) {
  before.levels = assembled.estimate;
  replay_classes(assembled, job, false, &processes);
  note(assembled.estimate);
}

void Judge::start(const Assembled& assembled, const Estimate& judged) {
  before.levels = assembled.estimate;
  note(judged);
}

void Judge::note(const Estimate& replayed) {
  before.of_host = excess(replayed) <= 0 && host_excess(replayed) > 0;
  before.replayed = lacks(replayed);
  if (before.of_host) return;
  for (const auto& g : replayed.gpus)
    if (!g.phases.empty() && g.phases[g.worst].usage.capacity_needed - g.usable == before.replayed) {
      before.role = g.phases[g.worst].role;
      break;
    }
}

Estimate Judge::levels(const Job& job) const { return assemble(job, catalog, tapes).estimate; }

Assembled Judge::replayed(const Job& job) {
  Assembled out = assemble(job, catalog, tapes);
  replay_classes(out, job, false, &processes);
  return out;
}

std::optional<Estimate> Judge::fullest(const Job& job) {
  Assembled out = assemble(job, catalog, tapes);
  if (!replay_fullest(out, job, processes, most_events)) {
    gave_up = true;
    return std::nullopt;
  }
  return std::move(out.estimate);
}

bool Judge::fits(const Job& job) {
  {
    const Assembled a = assemble(job, catalog, tapes);
    if (!a.estimate.fits()) return false;
    for (std::size_t c = 0; c < a.classes.size(); ++c)
      if (!runs_through(a, c, job)) return false;
  }
  const auto all = fullest(job);
  return all && all->fits();
}

std::vector<std::string> values_of(const Job& job, const Role* role, const Knob& k, bool of_host) {
  std::vector<std::string> out;
  switch (k.type) {
    case KnobType::flag:
      out = {k.get(job, role) == "true" ? "false" : "true"};
      break;
    case KnobType::choice:
      out = k.key == "sync.by" ? std::vector<std::string>{"disk"} : k.choices;  // without an update it is another job
      break;
    case KnobType::layout:
      out = layouts(*role, job.cluster.gpus_per_node);
      break;
    case KnobType::items:
      out = of_host ? std::vector<std::string>{"[parameters]", "[optimizer]", "[]"}
                    : std::vector<std::string>{"[optimizer]", "[parameters, optimizer]"};
      break;
    case KnobType::count:
    case KnobType::bytes: {
      const std::string text = k.get(job, role);
      const auto said = k.type == KnobType::bytes ? read_bytes(text) : read_count(text);
      if (!said.value) break;
      const std::int64_t number = *said.value;
      if (k.limits.least == 0 && k.limits.most <= 2) {  // a level: deeper ones
        for (std::int64_t level = number + 1; level <= k.limits.most; ++level) out.push_back(std::to_string(level));
        break;
      }
      const bool budget = role != nullptr && k.key.ends_with("tokens_per_micro_batch");
      const std::int64_t floor = budget ? least_budget(job, *role) : 0;
      for (const std::int64_t part : {2, 4, 8})
        if (number / part >= std::max({std::int64_t{1}, k.limits.least, floor}))
          out.push_back(k.type == KnobType::bytes ? exact_bytes_text(number / part) : std::to_string(number / part));
      if (const std::int64_t longest = budget ? longest_sequence(job, *role) : 0; longest > 0 && longest < number)
        out.push_back(std::to_string(longest));
      break;
    }
    case KnobType::number:
      for (const double less : {0.05, 0.1, 0.2, 0.3})
        if (role != nullptr && role->server.memory_fraction - less > 0.1)
          out.push_back(number_text(std::round((role->server.memory_fraction - less) * 1000) / 1000));  // 0.9, not 0.8999
      break;
    case KnobType::text:
      break;
  }
  return out;
}

Changed change_natively(const Job& job, const Settings& settings, const Catalog& catalog) {
  Changed out;
  Job changed = job;
  try {
    for (const auto& [key, value] : settings) set_as_read(changed, key, value);
  } catch (const InputError&) {
    return out;  // the knob's own limits
  }
  for (const auto& [key, value] : settings) {
    out.words.changes.push_back({key, get(job, key), get(changed, key), find_knob(job, key).knob->effect});
    out.words.overrides.push_back(key + "=" + get(changed, key));
  }
  if (problems(changed, catalog).empty()) out.job = std::move(changed);
  return out;
}

std::optional<Judged> sift(Changed changed, const Judge& judge, std::string_view role) {
  if (!changed.job || changed.words.changes.empty()) return std::nullopt;
  Judged out;
  try {
    const Estimate e = judge.levels(*changed.job);
    const std::string_view of = role.empty() ? std::string_view(judge.before.role) : role;
    out.remedy.gain = judge.lacks(judge.before.levels, of) - judge.lacks(e, of);
    out.remedy.fits = e.fits();
  } catch (const InputError&) {
    return std::nullopt;  // not supported yet: not a remedy
  }
  if (out.remedy.gain < kWorthSaying) return std::nullopt;
  const Change& first = changed.words.changes.front();
  out.remedy.key = first.key;
  out.remedy.from = first.from;
  out.remedy.to = first.to;
  for (const auto& change : changed.words.changes) out.remedy.effect = std::max(out.remedy.effect, change.effect);
  out.changed = std::move(changed);
  return out;
}

std::optional<Judged> confirm(Judged judged, Judge& judge) {
  const auto replayed = judge.fullest(*judged.changed.job);
  if (!replayed) return judged;
  judged.remedy.gain = judge.before.replayed - judge.lacks(*replayed);
  judged.remedy.fits = replayed->fits();
  if (judged.remedy.gain < kWorthSaying) return std::nullopt;
  return judged;
}

std::optional<Judged> best_of(const Job& job, const Role* role, const Knob& k, Judge& judge, const Changer& change,
                              std::string* refused) {
  std::optional<Judged> best;
  Bytes most = 0;  // by levels
  bool sure = false;
  const std::string key = role == nullptr ? std::string(k.key) : role->name + "." + std::string(k.key);
  for (const auto& value : values_of(job, role, k, judge.before.of_host)) {
    Changed changed = change({{key, value}});
    if (refused != nullptr && !changed.why.empty()) *refused = changed.why;
    if (changed.job && get(*changed.job, key) == get(job, key)) continue;
    auto judged = sift(std::move(changed), judge);
    if (!judged) continue;
    const Bytes gain = judged->remedy.gain;
    const bool may_fit = judged->remedy.fits;
    if (!may_fit && gain <= most) continue;
    if (may_fit) judged = confirm(std::move(*judged), judge);
    if (!judged || (!judged->remedy.fits && gain <= most)) continue;
    most = gain;
    best = std::move(judged);
    best->value = value;
    sure = may_fit;
    if (sure && best->remedy.fits) break;
  }
  if (best && !sure) best = confirm(std::move(*best), judge);
  if (!best) return best;
  best->remedy.effect = k.effect;
  best->remedy.text = std::string(k.remedy);
  if (judge.before.of_host && k.type == KnobType::items) best->remedy.text = kStays;
  return best;
}

}  // namespace oomplan
