// advise() of a file: the same changes as of a Job, but made in the file's own words, and ordered by what they gain for what they
// cost.
#include <algorithm>

#include <fmt/format.h>

#include "advice/causes.hpp"
#include "advice/together.hpp"
#include "advice/trial.hpp"
#include "estimate/explain.hpp"
#include "estimate/fit_probability.hpp"
#include "frontends/areal/guide.hpp"
#include "job/knobs.hpp"
#include "job/placement.hpp"
#include "job/validate.hpp"
#include "job/workload.hpp"
#include "layout/letters.hpp"
#include "search/step_time.hpp"
#include "units/sizes.hpp"

namespace oomplan {
namespace {

/// A change whose time nobody models counts as if it doubled the step, one that costs nothing as if it cost a fiftieth.
constexpr double kUnknownCost = 1, kLeastCost = 0.02;

class FileAdviser {
 public:
  FileAdviser(const Source& source, Effect allow, const Catalog& catalog)
      : words_(source, catalog), job_(words_.reading().job), allow_(allow), catalog_(catalog), known_(problems_of(job_)) {}

  Advice run() {
    Advice out;
    out.reading = words_.reading();
    Assembled assembled = assemble(job_, catalog_, store_);
    before_ = replayed_before(assembled, job_);
    out.causes = causes_of(assembled, job_, words_);
    out.estimate = std::move(assembled.estimate);
    worst_first(out.estimate, job_);
    if (out.estimate.replayed) judge_probability(out.estimate, job_, false);
    seconds_ = step_seconds(job_, catalog_, store_);
    consider(nullptr, out);
    for (const auto& role : job_.roles) consider(&role, out);
    const bool enough = out.estimate.fits() || alone_enough(out);
    more_gpus(out);
    other_tasks(out);
    if (!enough && !alone_enough(out)) go_on(out);
    std::stable_sort(out.remedies.begin(), out.remedies.end(),
                     [](const Remedy& a, const Remedy& b) { return rank(a) > rank(b); });
    out.estimate.remedies = out.remedies;
    return out;
  }

 private:
  static bool alone_enough(const Advice& out) {
    return std::any_of(out.remedies.begin(), out.remedies.end(), [](const Remedy& r) { return r.fits; });
  }
  static std::pair<bool, double> rank(const Remedy& r) { return {r.fits, static_cast<double>(r.gain) / (kLeastCost + r.cost)}; }

  void consider(const Role* role, Advice& out) {
    for (const auto& k : knobs()) {
      if (k.remedy.empty() || k.effect > allow_ || (role == nullptr) != (k.of == KnobOf::job)) continue;
      if (role != nullptr && !applies(k, *role)) continue;
      const std::string knob = role == nullptr ? std::string(k.key) : role->name + "." + std::string(k.key);
      const auto together = written_together(role, k);
      if (together.front() != knob) continue;  // told with the role that comes first
      std::string refused;
      const auto all = [&](const Settings& one) {
        Settings settings;
        for (const auto& key : together) settings.emplace_back(key, one.front().second);
        return change(settings);
      };
      auto found = best_of(job_, role, k, before_, catalog_, store_, all, &refused);
      if (found) {
        remember(role, k, together, *found);
        add(knob, std::move(*found), out.remedies);
      }
      else if (!refused.empty())
        leave_out(role, k, knob, refused, out);
    }
  }
  /// For pairs and triples: its values up to the one that was found.
  void remember(const Role* role, const Knob& k, const std::vector<std::string>& together, const Judged& found) {
    Option option;
    for (const auto& value : values_of(job_, role, k)) {
      Settings settings;
      for (const auto& key : together) settings.emplace_back(key, value);
      option.values.push_back(std::move(settings));
      if (value == found.value) break;
    }
    option.gain = found.remedy.gain;
    option.text = text_of(together.front(), found.remedy.text);
    option.modelled = k.effect == Effect::free || models_time_of(together.front());
    options_.push_back(std::move(option));
  }
  std::string text_of(std::string_view knob, const std::string& ours) const {
    const Role* role = job_.role(knob.substr(0, knob.find('.')));
    const bool megatron = role != nullptr && role->engine == EngineKind::megatron;
    const auto text = words_.native() ? std::string_view() : areal::guide_text(knob, megatron);
    return text.empty() ? ours : std::string(text);
  }

  /// Keys of the roles whose values come from one place of the file: who wrote it so means them together.
  std::vector<std::string> written_together(const Role* role, const Knob& k) const {
    if (role == nullptr) return {std::string(k.key)};
    const auto key_of = [&](const Role& r) { return r.name + "." + std::string(k.key); };
    const auto place = [&](const Role& r) -> std::string {
      const auto it = job_.origins.find(key_of(r));
      if (it == job_.origins.end() || it->second.kind == Origin::Kind::default_) return key_of(r);
      const Origin& o = it->second;
      if (o.kind == Origin::Kind::override_) return o.because.empty() ? key_of(r) : o.because;
      return o.place.line > 0 ? fmt::format("{}:{}:{}", o.place.file, o.place.line, o.place.column) : key_of(r);
    };
    std::vector<std::string> out;
    for (const auto& r : job_.roles)
      if (r.serves() == role->serves() && applies(k, r) && (&r == role || (!words_.native() && place(r) == place(*role))))
        out.push_back(key_of(r));
    return out;
  }
  /// As the file's framework would read it. What it only warns of, and would be worse than today, is no remedy; nor is a change
  /// with which the file would mean another workload.
  Changed change(const Settings& settings) const {
    if (words_.native()) return change_natively(job_, settings, catalog_);
    Changed out;
    out.words = words_.rewrite(settings);
    out.why = out.words.why;
    if (!out.why.empty()) return out;
    try {
      Job job = words_.job_with(out.words);
      if (!(workload_of(job) == workload_with(settings))) return out;
      for (const auto& problem : problems_of(job))
        if (std::find(known_.begin(), known_.end(), problem) == known_.end()) return out;
      out.job = std::move(job);
    } catch (const InputError&) {  // the framework or the job refuses it
    }
    return out;
  }
  /// Where, and what was found there: another value that is wrong, too, is another problem.
  using Wrong = std::pair<std::string, std::string>;
  std::vector<Wrong> problems_of(const Job& job) const {
    std::vector<Wrong> out;
    for (const auto& problem : problems(job, catalog_)) out.emplace_back(problem.place.path, problem.found);
    return out;
  }
  /// What the settings mean it to be: that of the file, but for what they set themselves.
  Workload workload_with(const Settings& settings) const {
    Workload out = workload_of(job_);
    for (const auto& [key, text] : settings)
      for (const auto& [knob, tokens] : {std::pair{"prompt_tokens", &out.prompt},
                                         {"response_tokens", &out.response},
                                         {"sequences_per_step", &out.sequences_per_step}})
        if (key == knob) *tokens = read_count(text).value.value_or(0);
    return out;
  }

  void add(std::string_view knob, Judged found, std::vector<Remedy>& out) {
    Remedy r = std::move(found.remedy);
    if (r.text != kMoreGpus) r.text = text_of(knob, r.text);
    const Job& after = *found.changed.job;
    if (models_time_of(knob)) r.step_time = step_time(after);
    r.cost = r.effect == Effect::free ? 0 : r.step_time ? std::max(0.0, *r.step_time * gpus_ratio(after) - 1) : kUnknownCost;
    r.patch = words_.patch(found.changed.words);
    out.push_back(std::move(r));
  }
  std::optional<double> step_time(const Job& after) const {
    if (!seconds_ || *seconds_ <= 0) return std::nullopt;
    const auto then = step_seconds(after, catalog_, store_);
    return then ? std::optional(*then / *seconds_) : std::nullopt;
  }
  /// GPUs cost as much as time.
  double gpus_ratio(const Job& after) const {
    return static_cast<double>(gpus_of(after)) / static_cast<double>(std::max<std::int64_t>(1, gpus_of(job_)));
  }

  // ---- where no change is enough alone

  void go_on(Advice& out) {
    const Combiner combiner(job_, options_, catalog_, store_, [&](const Job& after, int unknown) {
      return std::max(0.0, step_time(after).value_or(1) * gpus_ratio(after) - 1) + kUnknownCost * unknown;
    });
    int tries = 0;
    for (const Combination& c : combiner.fitting()) {
      if (++tries > kTries) break;
      if (!(out.together = confirmed(combiner, c))) out.together = confirmed(combiner, combiner.strongest(c));
      if (out.together) return;
    }
    on_other_hardware(combiner.nearest(), out);
  }
  /// In the words of the file, and by the replay.
  std::optional<Together> confirmed(const Combiner& combiner, const Combination& c) {
    Changed changed = change(c.settings);
    if (!changed.job || changed.words.changes.empty()) return std::nullopt;
    Estimate e = estimate_of(*changed.job);
    if (!e.fits()) return std::nullopt;
    Together out;
    out.changes = changed.words.changes;
    for (const auto& one : out.changes) out.effect = std::max(out.effect, one.effect);
    int unknown = 0;
    for (const std::size_t i : c.options) {
      out.texts.push_back(combiner.option(i).text);
      unknown += combiner.option(i).modelled ? 0 : 1;
    }
    out.gain = before_.replayed - excess(e);
    out.fit_probability = e.fit_probability;
    const auto time = step_time(*changed.job);
    if (unknown == 0) out.step_time = time;
    out.cost = std::max(0.0, time.value_or(1) * gpus_ratio(*changed.job) - 1) + kUnknownCost * unknown;
    out.patch = words_.patch(changed.words);
    return out;
  }
  /// As an estimate of the job says it.
  Estimate estimate_of(const Job& job) {
    Assembled a = assemble(job, catalog_, store_);
    replay_classes(a, job, false);
    worst_first(a.estimate, job);
    if (a.estimate.replayed) judge_probability(a.estimate, job, false);
    return std::move(a.estimate);
  }
  bool fits_by_levels_and_replay(const Job& job) {
    try {
      return problems_of(job) == known_ && assemble(job, catalog_, store_).estimate.fits() && estimate_of(job).fits();
    } catch (const InputError&) {  // not supported yet there
      return false;
    }
  }
  /// The job as it is, or with the changes that come nearest.
  void on_other_hardware(const Combination& nearest, Advice& out) {
    std::vector<std::pair<Settings, std::string>> ways{{{}, ""}};
    if (const Changed changed = change(nearest.settings); !nearest.options.empty() && changed.job) {
      std::string words;
      for (const auto& override : changed.words.overrides) words += (words.empty() ? "" : " ") + override;
      ways.emplace_back(nearest.settings, std::move(words));
    }
    larger_gpu(ways, out);
    smallest_number(ways, out);
  }
  void larger_gpu(const std::vector<std::pair<Settings, std::string>>& ways, Advice& out) {
    std::vector<const Gpu*> kinds;
    const Bytes now = catalog_.gpu(job_.cluster.gpu).usable;
    for (const Gpu& gpu : catalog_.gpus())
      if (gpu.usable > now) kinds.push_back(&gpu);
    std::stable_sort(kinds.begin(), kinds.end(), [](const Gpu* a, const Gpu* b) { return a->usable < b->usable; });
    for (const Gpu* kind : kinds)
      for (const auto& [settings, words] : ways) {
        Changed changed = change(settings);
        if (!changed.job) continue;
        changed.job->cluster.gpu = kind->name;
        if (!fits_by_levels_and_replay(*changed.job)) continue;
        out.larger_gpu = Hardware{kind->name, changed.job->cluster.gpus, words, words_.patch(changed.words)};
        return;
      }
  }
  void smallest_number(const std::vector<std::pair<Settings, std::string>>& ways, Advice& out) {
    for (const std::int64_t times : {2, 3, 4, 6, 8, 12, 16, 24, 32, 64})
      for (const auto& [settings, words] : ways) {
        Settings all = with_gpus(times);
        if (all.empty()) return;
        for (const auto& setting : settings)
          if (!setting.first.ends_with(".layout")) all.push_back(setting);
        const Changed changed = change(all);
        if (!changed.job || !fits_by_levels_and_replay(*changed.job)) continue;
        std::string said;
        for (const auto& override : changed.words.overrides) said += (said.empty() ? "" : " ") + override;
        out.more_gpus = Hardware{job_.cluster.gpu, changed.job->cluster.gpus, std::move(said), words_.patch(changed.words)};
        return;
      }
  }

  // ---- another task

  /// Shorter sequences, with micro-batches that hold no more than them.
  void other_tasks(Advice& out) {
    auto& into = allow_ >= Effect::semantics ? out.remedies : out.other_tasks;
    for (const auto& [knob, tokens] : {std::pair{"response_tokens", job_.response_tokens}, {"prompt_tokens", job_.prompt_tokens}}) {
      std::optional<Judged> best;
      for (const std::int64_t part : {2, 4, 8}) {
        if (tokens / part < 1) break;
        auto judged = judge(change(with_length(knob, tokens, tokens / part)), before_, catalog_, store_);
        if (!judged || (best && judged->remedy.gain <= best->remedy.gain)) continue;
        best = std::move(judged);
        if (best->remedy.fits) break;
      }
      if (!best) continue;
      best->remedy.effect = Effect::semantics;
      best->remedy.text = kShorter;
      add(knob, std::move(*best), into);
    }
  }
  Settings with_length(const char* knob, std::int64_t before, std::int64_t after) const {
    Settings out{{knob, std::to_string(after)}};
    for (const auto& r : job_.roles) {
      const std::int64_t now = r.trainer.tokens_per_micro_batch, least = least_budget(job_, r) - before + after;
      if (!r.serves() && least_budget(job_, r) > 0 && now > least && least > 0)
        out.emplace_back(r.name + ".tokens_per_micro_batch", std::to_string(least));
    }
    return out;
  }

  /// What would help but cannot be said is told with its reason, if it would help.
  void leave_out(const Role* role, const Knob& k, const std::string& knob, const std::string& why, Advice& out) {
    const auto natively = [&](const Settings& s) { return change_natively(job_, s, catalog_); };
    const auto found = best_of(job_, role, k, before_, catalog_, store_, natively);
    if (!found) return;
    const std::string text = why.starts_with(knob + ": ") ? why.substr(knob.size() + 2) : why;
    out.left_out.push_back({Note::Level::info,
                            {{}, 0, 0, knob},
                            fmt::format("{} -> {} would save {}, but {}", found->remedy.from, found->remedy.to,
                                        bytes_text(found->remedy.gain), text)});
  }

  static std::int64_t gpus_of(const Job& job) {
    std::int64_t sum = 0;
    for (const auto& r : job.roles)
      if (r.beside.empty()) sum += r.layout().world();
    return sum;
  }
  /// More GPUs for training, every rank holds a smaller share: as many as are enough, twice as many when none is.
  void more_gpus(Advice& out) {
    if (allow_ < Effect::speed) return;
    std::optional<Judged> found;
    for (const std::int64_t times : {8, 4, 2}) {
      auto judged = judge(change(with_gpus(times)), before_, catalog_, store_);
      if (judged && (!found || judged->remedy.fits || !found->remedy.fits)) found = std::move(judged);
    }
    if (!found) return;
    found->remedy.text = kMoreGpus;
    found->remedy.effect = Effect::speed;
    add(learner()->name + ".layout", std::move(*found), out.remedies);
  }
  const Role* learner() const {
    const auto it = std::find_if(job_.roles.begin(), job_.roles.end(), [](const Role& r) { return !r.serves(); });
    return it == job_.roles.end() ? nullptr : &*it;
  }
  /// Nothing for trainers that share GPUs with a server.
  Settings with_gpus(std::int64_t times) const {
    const Role* first = learner();
    Settings out;
    if (first == nullptr || anchor(job_, *first)->serves()) return out;
    for (const auto& r : job_.roles) {
      if (r.serves() || anchor(job_, r) != anchor(job_, *first)) continue;
      Layout more = r.layout();
      more.data *= times;
      out.emplace_back(r.name + ".layout", letters(more));
    }
    const std::int64_t need = gpus_of(job_) + (times - 1) * first->layout().world();
    const std::int64_t node = std::max<std::int64_t>(1, job_.cluster.gpus_per_node);
    if (need > job_.cluster.gpus) out.emplace_back("gpus", fmt::format("{} x {}", round_up(need, node), job_.cluster.gpu));
    return out;
  }
  static constexpr int kTries = 4;  ///< of pairs or triples whose levels fit
  static constexpr std::string_view kShorter =
      "another task: sequences end earlier, and a micro-batch holds no more than the longest one";
  static constexpr std::string_view kMoreGpus =
      "more GPUs for training: each holds a smaller share of parameters, gradients and optimizer states";

  FileWords words_;
  const Job& job_;
  Effect allow_;
  const Catalog& catalog_;
  std::vector<Option> options_;  ///< of changes that are not enough alone
  std::vector<Wrong> known_;  ///< what is wrong with the job already
  TapeStore& store_ = TapeStore::shared();
  Before before_;
  std::optional<double> seconds_;
};

}  // namespace

Advice advise(const Source& source, Effect allow, const Catalog* given) {
  return FileAdviser(source, allow, given != nullptr ? *given : Catalog::builtin()).run();
}

Patch patch(const Source& source, const std::vector<std::pair<std::string, std::string>>& changes, const Catalog* given) {
  const FileWords words(source, given != nullptr ? *given : Catalog::builtin());
  const Rewrite rewrite = words.rewrite(changes);
  if (!rewrite.why.empty()) throw InputError(Problem{{source.name, 0, 0, {}}, {}, {}, {}, rewrite.why});
  words.job_with(rewrite);
  return words.patch(rewrite);
}

}  // namespace oomplan
