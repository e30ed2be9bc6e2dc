#include "advice/beyond.hpp"

#include <algorithm>
#include <array>

#include "estimate/fit_probability.hpp"

namespace oomplan {
namespace {

/// Pairs or triples whose levels fit and whose replay is looked at: the cheapest ones.
constexpr int kTries = 4;
constexpr std::array<std::int64_t, 10> kTimes{2, 3, 4, 6, 8, 12, 16, 24, 32, 64};

std::string joined(const std::vector<std::string>& overrides) {
  std::string out;
  for (const auto& one : overrides) out += (out.empty() ? "" : " ") + one;
  return out;
}

}  // namespace

std::vector<std::string> breaking_roles(const Estimate& e, const Judge& judge) {
  std::vector<std::string> out{judge.before.role};
  for (const auto& gpu : e.gpus) {
    if (gpu.phases.empty() || gpu.phases[gpu.worst].usage.capacity_needed <= gpu.usable) continue;
    const std::string& role = gpu.phases[gpu.worst].role;
    if (std::find(out.begin(), out.end(), role) == out.end()) out.push_back(role);
  }
  return out;
}

void Beyond::go_on(std::vector<Option> options, Advice& out) const {
  const Combiner combiner(job_, std::move(options), breaking_roles(out.estimate, judge_), judge_,
                          [&](const Job& after, int unknown) { return means_.cost(after, means_.step_time(after), unknown); });
  out.together = cheapest(combiner);
  const std::vector<Way> all = out.together ? std::vector<Way>{Way{}} : ways(combiner.nearest());
  larger_gpu(all, out);
  more_gpus(all, out);
}

std::optional<Together> Beyond::cheapest(const Combiner& combiner) const {
  int tries = 0;
  for (const Combination& c : combiner.fitting()) {
    if (++tries > kTries) break;
    auto out = confirmed(combiner, combiner.milder(c));
    if (!out) out = confirmed(combiner, c);  // the replay refuses the milder values
    if (out) return out;
  }
  return std::nullopt;
}

/// In the words of the file, and by the replay.
std::optional<Together> Beyond::confirmed(const Combiner& combiner, const Combination& c) const {
  const Changed changed = means_.change(c.settings);
  if (!changed.job || changed.words.changes.empty() || !judge_.fits(*changed.job)) return std::nullopt;
  Assembled after = judge_.replayed(*changed.job);
  worst_first(after.estimate, *changed.job);
  if (after.estimate.replayed) judge_probability(after.estimate, *changed.job);
  Together out;
  out.changes = changed.words.changes;
  for (const auto& one : out.changes) out.effect = std::max(out.effect, one.effect);
  for (const std::size_t i : c.options) out.texts.push_back(combiner.option(i).text);
  const int unknown = combiner.unknown(c.options);
  out.gain = judge_.before.replayed - judge_.lacks(after.estimate);
  out.fit_probability = after.estimate.fit_probability;
  const auto time = means_.step_time(*changed.job);
  if (unknown == 0) out.step_time = time;
  out.cost = means_.cost(*changed.job, time, unknown);
  out.patch = words_.patch(changed.words);
  return out;
}

/// The job as it is, or with the changes that come nearest.
std::vector<Beyond::Way> Beyond::ways(const Combination& nearest) const {
  std::vector<Way> out{Way{}};
  if (nearest.options.empty()) return out;
  if (const Changed changed = means_.change(nearest.settings); changed.job)
    out.emplace_back(nearest.settings, joined(changed.words.overrides));
  return out;
}

bool Beyond::fits(const Job& job) const {
  try {
    return means_.sound(job) && judge_.fits(job);
  } catch (const InputError&) {  // not supported yet there
    return false;
  }
}

void Beyond::larger_gpu(const std::vector<Way>& ways, Advice& out) const {
  std::vector<const Gpu*> kinds;
  const Bytes now = judge_.catalog.gpu(job_.cluster.gpu).usable;
  for (const Gpu& gpu : judge_.catalog.gpus())
    if (gpu.usable > now) kinds.push_back(&gpu);
  std::stable_sort(kinds.begin(), kinds.end(), [](const Gpu* a, const Gpu* b) { return a->usable < b->usable; });
  std::vector<std::pair<Changed, std::string>> changed;
  for (const auto& [settings, words] : ways)
    if (Changed one = means_.change(settings); one.job) changed.emplace_back(std::move(one), words);
  for (const Gpu* kind : kinds)
    for (const auto& [one, words] : changed) {
      Job there = *one.job;
      there.cluster.gpu = kind->name;
      if (!fits(there)) continue;
      out.larger_gpu = Hardware{kind->name, there.cluster.gpus, words, words_.patch(one.words)};
      return;
    }
}

void Beyond::more_gpus(const std::vector<Way>& ways, Advice& out) const {
  for (const std::int64_t times : kTimes)
    for (const auto& [settings, words] : ways) {
      Settings all = means_.with_gpus(times);
      if (all.empty()) return;
      for (const auto& setting : settings)
        if (!setting.first.ends_with(".layout")) all.push_back(setting);
      const Changed changed = means_.change(all);
      if (!changed.job || !fits(*changed.job)) continue;
      out.more_gpus =
          Hardware{job_.cluster.gpu, changed.job->cluster.gpus, joined(changed.words.overrides), words_.patch(changed.words)};
      return;
    }
}

}  // namespace oomplan
