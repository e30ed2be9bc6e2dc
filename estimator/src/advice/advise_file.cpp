// advise() of a file: the same changes as of a Job, but made in the file's own words, and ordered by what they gain for what they
// cost.
#include <algorithm>

#include <fmt/format.h>

#include "advice/beyond.hpp"
#include "advice/causes.hpp"
#include "advice/remedies.hpp"
#include "advice/trial.hpp"
#include "estimate/explain.hpp"
#include "estimate/fit_probability.hpp"
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
    judge_.start(assembled, job_);
    out.causes = causes_of(assembled, job_, words_);
    out.estimate = std::move(assembled.estimate);
    worst_first(out.estimate, job_);
    if (out.estimate.replayed) judge_probability(out.estimate, job_);
    single_changes(out);
    if (!out.estimate.fits() && !alone_enough(out)) go_on(out);
    other_tasks(out);
    by_gain_for_cost(out.remedies);
    out.estimate.remedies = out.remedies;
    return out;
  }
  /// Of a file whose estimate is there.
  Remedies remedies(const Estimate& judged) {
    tells_left_out_ = false;
    judge_.most_events = kMostEventsOfRemedies;
    judge_.start(assemble(job_, catalog_, store_), judged);
    Advice out;
    single_changes(out);
    by_gain_for_cost(out.remedies);
    return {std::move(out.remedies), !judge_.gave_up};
  }

 private:
  void single_changes(Advice& out) {
    seconds_ = step_seconds(job_, catalog_, store_);
    consider(nullptr, out);
    for (const auto& role : job_.roles) consider(&role, out);
    more_gpus(out);
  }
  static void by_gain_for_cost(std::vector<Remedy>& remedies) {
    std::stable_sort(remedies.begin(), remedies.end(), [](const Remedy& a, const Remedy& b) { return rank(a) > rank(b); });
  }
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
      auto found = best_of(job_, role, k, judge_, all, &refused);
      tried_.push_back({role, &k, together, found ? found->value : std::string()});
      if (found)
        add(knob, std::move(*found), out.remedies);
      else if (!refused.empty() && tells_left_out_)
        leave_out(role, k, knob, refused, out);
    }
  }
  /// A knob that was looked at, and its value that helps most where the job lacks most; "" none does.
  struct Tried {
    const Role* role;
    const Knob* knob;
    std::vector<std::string> together;
    std::string value;

    Settings settings(const std::string& of) const {
      Settings out;
      for (const auto& key : together) out.emplace_back(key, of);
      return out;
    }
  };
  /// For pairs and triples. Knobs that do not help where the job lacks most may help on other GPUs that are too small.
  std::vector<Option> options(const std::vector<std::string>& breaking) const {
    std::vector<Option> out;
    for (const Tried& tried : tried_) {
      std::string last = tried.value;
      for (std::size_t r = 1; r < breaking.size() && last.empty(); ++r) last = strongest(tried, breaking[r]);
      if (last.empty()) continue;
      Option option;
      for (const auto& value : values_of(job_, tried.role, *tried.knob, judge_.before.of_host)) {
        option.values.push_back(tried.settings(value));
        if (value == last) break;
      }
      option.text = text_of(tried.together.front(), std::string(tried.knob->remedy));
      option.modelled = tried.knob->effect == Effect::free || models_time_of(tried.together.front());
      out.push_back(std::move(option));
    }
    return out;
  }
  /// By levels, of the GPUs on which the role has its worst moment.
  std::string strongest(const Tried& tried, const std::string& breaking) const {
    std::string out;
    Bytes most = 0;
    for (const auto& value : values_of(job_, tried.role, *tried.knob, judge_.before.of_host))
      if (const auto judged = sift(change(tried.settings(value)), judge_, breaking); judged && judged->remedy.gain > most) {
        most = judged->remedy.gain;
        out = value;
      }
    return out;
  }
  void go_on(Advice& out) {
    const Means means{[&](const Settings& settings) { return change(settings); },
                      [&](const Job& job) { return problems_of(job) == known_; }, [&](const Job& job) { return step_time(job); },
                      [&](const Job& job, std::optional<double> time, int unknown) {
                        return std::max(0.0, time.value_or(1) * gpus_ratio(job) - 1) + kUnknownCost * unknown;
                      },
                      [&](std::int64_t times) { return with_gpus(times); }};
    Beyond(job_, words_, judge_, means).go_on(options(breaking_roles(out.estimate, judge_)), out);
  }
  std::string text_of(std::string_view knob, const std::string& ours) const {
    const Role* role = job_.role(knob.substr(0, knob.find('.')));
    const bool megatron = role != nullptr && role->engine == EngineKind::megatron;
    const std::string_view text = words_.guide_text(knob, megatron);
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
    // one key of the file for both: verl's actor and reference have one model
    const auto one_key = [&](const Role& r) {
      const std::string said = words_.key_of(key_of(r));
      return said != key_of(r) && said == words_.key_of(key_of(*role));
    };
    std::vector<std::string> out;
    for (const auto& r : job_.roles)
      if (r.serves() == role->serves() && applies(k, r) &&
          (&r == role || (!words_.native() && (place(r) == place(*role) || one_key(r)))))
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
    if (r.text != kMoreGpus && !judge_.before.of_host) r.text = text_of(knob, r.text);
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

  // ---- another task

  /// Shorter sequences, with micro-batches that hold no more than them.
  void other_tasks(Advice& out) {
    auto& into = allow_ >= Effect::semantics ? out.remedies : out.other_tasks;
    for (const auto& [knob, tokens] :
         {std::pair{"response_tokens", job_.response_tokens}, {"prompt_tokens", job_.prompt_tokens}}) {
      std::vector<Settings> shorter;
      for (const std::int64_t part : {2, 4, 8})
        if (tokens / part > 0) shorter.push_back(with_length(knob, tokens, tokens / part));
      auto best = mildest(shorter, true);
      if (!best) continue;
      best->remedy.effect = Effect::semantics;
      best->remedy.text = kShorter;
      add(knob, std::move(*best), into);
    }
  }
  /// The first that is enough; where none is the strongest (`last`) or the mildest.
  std::optional<Judged> mildest(const std::vector<Settings>& mild_to_strong, bool last) {
    std::optional<Judged> otherwise;
    for (const Settings& settings : mild_to_strong) {
      auto sifted = sift(change(settings), judge_);
      if (!sifted) continue;
      if (sifted->remedy.fits) sifted = confirm(std::move(*sifted), judge_);
      if (sifted && sifted->remedy.fits) return sifted;
      if (sifted && (last || !otherwise)) otherwise = std::move(sifted);
    }
    return otherwise ? confirm(std::move(*otherwise), judge_) : std::nullopt;
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
    const auto found = best_of(job_, role, k, judge_, natively);
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
    std::vector<Settings> more;
    for (const std::int64_t times : {2, 4, 8}) more.push_back(with_gpus(times));
    auto found = mildest(more, false);
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
  static constexpr std::string_view kShorter =
      "another task: sequences end earlier, and a micro-batch holds no more than the longest one";
  static constexpr std::string_view kMoreGpus =
      "more GPUs for training: each holds a smaller share of parameters, gradients and optimizer states";

  FileWords words_;
  const Job& job_;
  Effect allow_;
  const Catalog& catalog_;
  std::vector<Tried> tried_;
  std::vector<Wrong> known_;  ///< what is wrong with the job already
  bool tells_left_out_ = true;
  TapeStore& store_ = TapeStore::shared();
  Judge judge_{catalog_, store_};
  std::optional<double> seconds_;
};

}  // namespace

Advice advise(const Source& source, Effect allow, const Catalog* given) {
  return FileAdviser(source, allow, given != nullptr ? *given : Catalog::builtin()).run();
}

Remedies remedies_of(const Source& source, Effect allow, const Catalog* given, const Estimate& judged) {
  return FileAdviser(source, allow, given != nullptr ? *given : Catalog::builtin()).remedies(judged);
}

Patch patch(const Source& source, const std::vector<std::pair<std::string, std::string>>& changes, const Catalog* given) {
  const FileWords words(source, given != nullptr ? *given : Catalog::builtin());
  const Rewrite rewrite = words.rewrite(changes);
  if (!rewrite.why.empty()) throw InputError(Problem{{source.name, 0, 0, {}}, {}, {}, {}, rewrite.why});
  words.job_with(rewrite);
  return words.patch(rewrite);
}

}  // namespace oomplan
