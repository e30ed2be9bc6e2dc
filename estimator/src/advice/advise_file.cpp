// advise() of a file: the same changes as of a Job, but made in the file's own words, and ordered by what they gain for what they
// cost.
#include <algorithm>

#include <fmt/format.h>

#include "advice/causes.hpp"
#include "advice/known.hpp"
#include "advice/trial.hpp"
#include "estimate/explain.hpp"
#include "estimate/fit_probability.hpp"
#include "frontends/areal/guide.hpp"
#include "job/knobs.hpp"
#include "job/placement.hpp"
#include "job/validate.hpp"
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
      : words_(source, catalog), job_(words_.reading().job), allow_(allow), catalog_(catalog), known_(paths_of(job_)) {}

  Advice run() {
    Advice out;
    out.reading = words_.reading();
    Assembled assembled = assemble(job_, catalog_, store_);
    before_ = replayed_before(assembled, job_);
    out.causes = causes_of(assembled, job_, words_);
    out.estimate = std::move(assembled.estimate);
    worst_first(out.estimate, job_);
    if (out.estimate.replayed) judge_probability(out.estimate, job_, false);
    find_remedies(out);
    out.estimate.remedies = out.remedies;
    return out;
  }
  /// Of a file whose estimate is there.
  std::vector<Remedy> remedies(const Estimate& judged) {
    Advice out;
    Assembled assembled = assemble(job_, catalog_, store_);
    before_ = replayed_before(assembled, job_, &judged);
    find_remedies(out);
    return std::move(out.remedies);
  }

 private:
  static std::pair<bool, double> rank(const Remedy& r) { return {r.fits, static_cast<double>(r.gain) / (kLeastCost + r.cost)}; }

  void find_remedies(Advice& out) {
    seconds_ = step_seconds(job_, catalog_, store_);
    consider(nullptr, out);
    for (const auto& role : job_.roles) consider(&role, out);
    more_gpus(out);
    std::stable_sort(out.remedies.begin(), out.remedies.end(),
                     [](const Remedy& a, const Remedy& b) { return rank(a) > rank(b); });
  }
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
      auto found = best_of(job_, role, k, before_, catalog_, store_, budget_, all, &refused);
      if (found)
        add(knob, std::move(*found), out);
      else if (!refused.empty())
        leave_out(role, k, knob, refused, out);
    }
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
  /// As the file's framework would read it. What it only warns of, and would be worse than today, is no remedy.
  Changed change(const Settings& settings) const {
    if (words_.native()) return change_natively(job_, settings, catalog_);
    Changed out;
    out.words = words_.rewrite(settings);
    out.why = out.words.why;
    if (!out.why.empty()) return out;
    try {
      Job job = words_.job_with(out.words);
      for (const auto& problem : problems(job, catalog_))
        if (std::find(known_.begin(), known_.end(), problem.place.path) == known_.end()) return out;
      out.job = std::move(job);
    } catch (const InputError&) {  // the framework or the job refuses it
    }
    return out;
  }
  std::vector<std::string> paths_of(const Job& job) const {
    std::vector<std::string> out;
    for (const auto& problem : problems(job, catalog_)) out.push_back(problem.place.path);
    return out;
  }

  void add(std::string_view knob, Judged found, Advice& out) {
    Remedy r = std::move(found.remedy);
    if (const auto text = areal::guide_text(knob); !words_.native() && !text.empty() && r.text != kMoreGpus) {
      r.text = text;
      if (found.by_levels) say_by_levels(r);
    }
    const Job& after = *found.changed.job;
    if (seconds_ && *seconds_ > 0 && models_time_of(knob))
      if (const auto then = step_seconds(after, catalog_, store_)) r.step_time = *then / *seconds_;
    // GPUs cost as much as time
    const double gpus = static_cast<double>(gpus_of(after)) / static_cast<double>(std::max<std::int64_t>(1, gpus_of(job_)));
    r.cost = r.effect == Effect::free ? 0 : r.step_time ? std::max(0.0, *r.step_time * gpus - 1) : kUnknownCost;
    r.patch = words_.patch(found.changed.words);
    out.remedies.push_back(std::move(r));
  }

  /// What would help but cannot be said is told with its reason, if it would help.
  void leave_out(const Role* role, const Knob& k, const std::string& knob, const std::string& why, Advice& out) {
    const auto natively = [&](const Settings& s) { return change_natively(job_, s, catalog_); };
    const auto found = best_of(job_, role, k, before_, catalog_, store_, budget_, natively);
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
      auto judged = judge(change(with_gpus(times)), before_, catalog_, store_, budget_);
      if (judged && (!found || judged->remedy.fits || !found->remedy.fits)) found = std::move(judged);
    }
    if (!found) return;
    const bool by_levels = found->by_levels;
    found->remedy.text = kMoreGpus;
    found->remedy.effect = Effect::speed;
    add(learner()->name + ".layout", std::move(*found), out);
    if (out.remedies.back().text == kMoreGpus && by_levels) say_by_levels(out.remedies.back());
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
  static constexpr std::string_view kMoreGpus =
      "more GPUs for training: each holds a smaller share of parameters, gradients and optimizer states";

  FileWords words_;
  const Job& job_;
  Effect allow_;
  const Catalog& catalog_;
  std::vector<std::string> known_;  ///< what is wrong with the job already
  TapeStore& store_ = TapeStore::shared();
  Before before_;
  ReplayBudget budget_;
  std::optional<double> seconds_;
};

}  // namespace

Advice advise(const Source& source, Effect allow, const Catalog* given) {
  return FileAdviser(source, allow, given != nullptr ? *given : Catalog::builtin()).run();
}

std::vector<Remedy> remedies_for(const Source& source, Effect allow, const Catalog* given, const Estimate& judged) {
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
