// search(): trainers and servers are judged apart and combined, so a million configurations cost some thousand folds.
#include <algorithm>
#include <map>
#include <thread>
#include <tuple>

#include <fmt/format.h>

#include "catalog/catalog.hpp"
#include "estimate/explain.hpp"
#include "job/knobs.hpp"
#include "job/placement.hpp"
#include "job/validate.hpp"
#include "search/limits.hpp"
#include "search/server_side.hpp"
#include "search/solve.hpp"
#include "search/trainer_side.hpp"
#include "units/sizes.hpp"

namespace oomplan {
namespace {

/// One combination, by index into the verdicts.
struct Pair {
  std::int64_t trainer = -1, server = -1;
  double seconds = 0;
  int changes = 0;
};

class Searcher {
 public:
  Searcher(const Job& job, const Space& space, const Catalog& catalog, std::stop_token stop)
      : job_(with_gpus(job, space)), space_(space), catalog_(catalog), stop_(std::move(stop)), runs_(resolve_roles(job_, catalog, store_)),
        trainers_(job_, catalog, store_, runs_), servers_(job_, catalog, runs_), usable_(catalog.gpu(job_.cluster.gpu).usable - job_.cluster.others) {
    shared_ = !trainers_.empty() && !servers_.empty() && share_gpus(job_, trainers_.leader(), servers_.role());
    axes_ = axes_of(job_, space_, trainers_.empty() ? nullptr : &trainers_.leader(), servers_.empty() ? nullptr : &servers_.role(), shared_);
  }

  Found run(int keep) {
    Found found;
    auto pairs = combine(job_.cluster.gpus, found.judged, found.fitting);
    take_best(pairs, keep, found);
    if (found.best.empty()) {
      found.limits = limits_of(job_, trainer_verdicts_, server_verdicts_, trainers_, usable_);
      found.smallest_gpus = smallest();
    }
    return found;
  }

 private:
  static Job with_gpus(const Job& job, const Space& space) {
    Job out = job;
    if (space.gpus) out.cluster.gpus = *space.gpus;
    return out;
  }

  /// How many GPUs go to training; the rest generate. On shared GPUs both get all.
  std::vector<std::pair<std::int64_t, std::int64_t>> splits(std::int64_t gpus) const {
    if (trainers_.empty()) return {{0, gpus}};
    if (servers_.empty()) return {{gpus, 0}};
    if (shared_) return {{gpus, gpus}};
    std::vector<std::pair<std::int64_t, std::int64_t>> out;
    const std::int64_t step = gpus <= 16 ? 1 : gpus <= 64 ? 4 : 8;
    for (std::int64_t t = step; t < gpus; t += step) out.emplace_back(t, gpus - t);
    return out;
  }

  bool stopped() const { return stop_.stop_requested(); }

  std::vector<Pair> combine(std::int64_t gpus, std::int64_t& judged, std::int64_t& fitting) {
    trainer_verdicts_.clear();
    server_verdicts_.clear();
    std::vector<Pair> out;
    for (const auto& [train, serve] : splits(gpus)) {
      const std::size_t t0 = trainer_verdicts_.size(), s0 = server_verdicts_.size();
      if (!trainers_.empty())
        for (const auto& p : trainer_points(axes_, space_, trainers_.leader(), train)) {
          if (stopped()) return out;
          trainer_verdicts_.push_back(trainers_.judge(p));
        }
      if (shared_) {
        combine_shared(t0, serve, out, judged, fitting);
        continue;
      }
      if (!servers_.empty())
        for (const auto& c : server_choices(axes_, space_, servers_.role(), serve, job_.cluster.gpus_per_node))
          server_verdicts_.push_back(servers_.judge(c, 0));
      combine_apart(t0, s0, out, judged, fitting);
    }
    return out;
  }

  bool fits(const ServerVerdict& v, Bytes others) const { return v.refusal == ServerRefusal::none && v.need + others <= usable_; }

  /// On GPUs of their own the two sides do not meet: the fastest of each are combined.
  void combine_apart(std::size_t t0, std::size_t s0, std::vector<Pair>& out, std::int64_t& judged, std::int64_t& fitting) {
    std::vector<std::int64_t> t, s;
    for (std::size_t i = t0; i < trainer_verdicts_.size(); ++i)
      if (trainer_verdicts_[i].need <= usable_) t.push_back(static_cast<std::int64_t>(i));
    for (std::size_t i = s0; i < server_verdicts_.size(); ++i)
      if (fits(server_verdicts_[i], 0)) s.push_back(static_cast<std::int64_t>(i));
    const auto size = [](std::size_t n) { return static_cast<std::int64_t>(std::max<std::size_t>(1, n)); };
    judged += size(trainer_verdicts_.size() - t0) * size(server_verdicts_.size() - s0);
    if ((t.empty() && !trainers_.empty()) || (s.empty() && !servers_.empty())) return;
    fitting += size(t.size()) * size(s.size());
    thin(t, [&](std::int64_t i) { return trainer_key(i); }, [&](std::int64_t i) { return trainer_rank(i); });
    thin(s, [&](std::int64_t i) { return server_key(i); }, [&](std::int64_t i) { return server_rank(i); });
    if (t.empty()) t.push_back(-1);
    if (s.empty()) s.push_back(-1);
    for (const auto i : t)
      for (const auto j : s) out.push_back(pair(i, j));
  }

  /// On the same GPUs each side sees what the other holds while it has its turn.
  void combine_shared(std::size_t t0, std::int64_t gpus, std::vector<Pair>& out, std::int64_t& judged, std::int64_t& fitting) {
    const auto choices = server_choices(axes_, space_, servers_.role(), gpus, job_.cluster.gpus_per_node);
    std::map<Bytes, std::pair<std::size_t, std::size_t>> by_idle;  // verdicts of all choices for what the trainers hold
    for (std::size_t i = t0; i < trainer_verdicts_.size(); ++i) {
      const TrainerVerdict& tv = trainer_verdicts_[i];
      judged += static_cast<std::int64_t>(choices.size());
      if (tv.need > usable_) continue;
      auto known = by_idle.find(tv.idle);
      if (known == by_idle.end()) {
        const std::size_t first = server_verdicts_.size();
        for (const auto& c : choices) server_verdicts_.push_back(servers_.judge(c, tv.idle));
        known = by_idle.emplace(tv.idle, std::pair{first, server_verdicts_.size()}).first;
      }
      std::vector<std::int64_t> s;
      for (std::size_t j = known->second.first; j < known->second.second; ++j) {
        if (!fits(server_verdicts_[j], tv.idle) || tv.need + server_verdicts_[j].asleep > usable_) continue;
        s.push_back(static_cast<std::int64_t>(j));
      }
      fitting += static_cast<std::int64_t>(s.size());
      thin(s, [&](std::int64_t j) { return server_key(j); }, [&](std::int64_t j) { return server_rank(j); });
      for (const auto j : s) out.push_back(pair(static_cast<std::int64_t>(i), j));
    }
    // one of each shape, as on GPUs of their own
    std::map<std::pair<Key, Key>, Pair> best;
    for (const auto& p : out) {
      const auto [at, fresh] = best.emplace(std::pair{trainer_key(p.trainer), server_key(p.server)}, p);
      if (!fresh && std::tuple(p.seconds, p.changes) < std::tuple(at->second.seconds, at->second.changes)) at->second = p;
    }
    out.clear();
    for (const auto& [key, p] : best) out.push_back(p);
  }

  // Configurations that differ only in how much is spent, not in shape, count as one: the fastest, then the least changed.
  using Key = std::tuple<std::int64_t, std::int64_t, int, int, int>;
  using Rank = std::tuple<double, int, Bytes, std::int64_t>;
  Key trainer_key(std::int64_t i) const {
    if (i < 0) return {};
    const auto& p = trainer_verdicts_[static_cast<std::size_t>(i)].point;
    return {p.gpus, p.context, static_cast<int>(p.recompute), (p.offload_parameters ? 2 : 0) + (p.offload_optimizer ? 1 : 0), static_cast<int>(p.storage)};
  }
  Key server_key(std::int64_t i) const {
    if (i < 0) return {};
    const auto& c = server_verdicts_[static_cast<std::size_t>(i)].choice;
    return {c.gpus, c.tensor, static_cast<int>(c.kv), 0, 0};
  }
  Rank trainer_rank(std::int64_t i) const {
    const auto& v = trainer_verdicts_[static_cast<std::size_t>(i)];
    return {v.seconds, changes_of(v.point), v.need, i};
  }
  Rank server_rank(std::int64_t i) const {
    const auto& v = server_verdicts_[static_cast<std::size_t>(i)];
    return {v.seconds, changes_of(v.choice), v.need, i};
  }
  template <class KeyOf, class RankOf>
  static void thin(std::vector<std::int64_t>& items, KeyOf&& key_of, RankOf&& rank_of) {
    std::map<Key, std::pair<Rank, std::int64_t>> best;
    for (const auto i : items) {
      const auto rank = rank_of(i);
      const auto [at, fresh] = best.emplace(key_of(i), std::pair{rank, i});
      if (!fresh && rank < at->second.first) at->second = {rank, i};
    }
    items.clear();
    for (const auto& [key, value] : best) items.push_back(value.second);
  }

  int changes_of(const TrainerPoint& p) const {
    const Trainer& t = trainers_.leader().trainer;
    const Trainer& own = job_.role(trainers_.leader().name)->trainer;
    (void)t;
    return (p.gpus != own.layout.data * own.layout.context || p.context != own.layout.context ? 1 : 0) + (p.tokens != own.tokens_per_micro_batch ? 1 : 0) +
           (p.recompute != own.recompute ? 1 : 0) + (p.form != own.optimizer_form ? 1 : 0) +
           (p.offload_parameters != own.offload_parameters || p.offload_optimizer != own.offload_optimizer ? 1 : 0) +
           (p.efficient_load != own.memory_efficient_load ? 1 : 0) + (p.storage != own.storage ? 1 : 0);
  }
  int changes_of(const ServerChoice& c) const {
    const Server& own = servers_.role().server;
    return (c.gpus != own.layout.world() || c.tensor != own.layout.tensor ? 1 : 0) + (c.fraction != own.memory_fraction ? 1 : 0) +
           (c.max_running != own.max_running ? 1 : 0) + (c.kv != own.kv ? 1 : 0);
  }

  Pair pair(std::int64_t t, std::int64_t s) const {
    const double train = t < 0 ? 0 : trainer_verdicts_[static_cast<std::size_t>(t)].seconds;
    const double serve = s < 0 ? 0 : server_verdicts_[static_cast<std::size_t>(s)].seconds;
    Pair p{t, s, train + serve, 0};
    // AReaL generates while it trains; on shared GPUs, and in verl, they take turns.
    if (t >= 0 && s >= 0 && !shared_ && trainers_.leader().trainer.framework == Framework::areal) p.seconds = std::max(train, serve);
    if (t >= 0) p.changes += changes_of(trainer_verdicts_[static_cast<std::size_t>(t)].point);
    if (s >= 0) p.changes += changes_of(server_verdicts_[static_cast<std::size_t>(s)].choice);
    return p;
  }

  Job job_of(const Pair& p) const {
    Job out = job_;
    for (std::size_t i = 0; i < out.roles.size(); ++i) {
      Role& r = out.roles[i];
      if (r.serves() && p.server >= 0) ServerSide::put(server_verdicts_[static_cast<std::size_t>(p.server)].choice, r.server);
      if (!r.serves() && p.trainer >= 0) TrainerSide::put(trainer_verdicts_[static_cast<std::size_t>(p.trainer)].point, r.trainer, runs_[i].trains);
    }
    return out;
  }

  void take_best(std::vector<Pair>& pairs, int keep, Found& found) {
    std::stable_sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) { return std::tuple(a.seconds, a.changes) < std::tuple(b.seconds, b.changes); });
    const double best = pairs.empty() ? 1 : pairs.front().seconds;
    for (const auto& p : pairs) {
      if (static_cast<int>(found.best.size()) >= keep || stopped()) break;
      Candidate c;
      c.job = job_of(p);
      if (!problems(c.job, catalog_).empty()) continue;
      c.estimate = explain_worst(c.job, catalog_, store_);  // the survivors get the replay
      if (!c.estimate.fits()) continue;
      describe_changes(job_, c);
      c.relative_step_time = best > 0 ? p.seconds / best : 1;
      found.best.push_back(std::move(c));
    }
  }

  bool any_fits(std::int64_t gpus) {
    std::int64_t judged = 0, fitting = 0;
    (void)combine(gpus, judged, fitting);
    return fitting > 0;
  }
  std::optional<std::int64_t> smallest() {
    constexpr std::int64_t kMost = 1024;
    for (std::int64_t n = job_.cluster.gpus + 1; n <= kMost; n = n < 16 ? n + 1 : n < 64 ? round_up(n + 1, 8) : n * 2) {
      if (stopped()) return std::nullopt;
      if (any_fits(n)) return n;
    }
    return std::nullopt;
  }

  Job job_;
  Space space_;
  const Catalog& catalog_;
  std::stop_token stop_;
  TapeStore store_;
  std::vector<RoleRun> runs_;
  TrainerSide trainers_;
  ServerSide servers_;
  Bytes usable_;
  bool shared_ = false;
  Axes axes_;
  std::vector<TrainerVerdict> trainer_verdicts_;
  std::vector<ServerVerdict> server_verdicts_;
};

}  // namespace

void describe_changes(const Job& from, Candidate& c) {
  for (const auto& role : from.roles)
    for (const auto& key : keys_of(&role)) {
      const std::string full = role.name + "." + key;
      const std::string before = get(from, full), after = get(c.job, full);
      if (before == after) continue;
      c.changes.push_back({full, before, after, find_knob(from, full).knob->effect});
      c.overrides.push_back(full + "=" + after);
    }
  c.job_file = to_yaml(c.job);
}

Found search(const Job& job, const Space& space, int keep, const Catalog* catalog, std::stop_token stop) {
  const Catalog& c = catalog != nullptr ? *catalog : Catalog::builtin();
  if (!space.maximise.empty()) return solve(job, space, keep, c, stop);
  std::vector<const Role*> anchors;
  for (const auto& r : job.roles)
    if (!r.serves() && (anchors.empty() || anchor(job, r) != anchors.front())) anchors.push_back(anchor(job, r));
  if (anchors.size() > 1)
    throw InputError(Problem{{"", 0, 0, anchors[1]->name}, "training roles on several groups of GPUs", "training roles that share their GPUs", "", "a search over several groups is not supported yet"});
  return Searcher(job, space, c, std::move(stop)).run(keep);
}

}  // namespace oomplan
