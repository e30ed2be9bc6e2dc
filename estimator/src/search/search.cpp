// search(): trainers and servers are judged apart and combined, so a million configurations cost some thousand folds.
#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <set>
#include <thread>
#include <tuple>

#include <fmt/format.h>

#include "catalog/catalog.hpp"
#include "estimate/explain.hpp"
#include "estimate/fit_probability.hpp"
#include "estimate/timeline.hpp"
#include "job/follow.hpp"
#include "job/knobs.hpp"
#include "job/placement.hpp"
#include "job/validate.hpp"
#include "search/admit.hpp"
#include "search/as_it_stands.hpp"
#include "search/fixed_keys.hpp"
#include "search/limits.hpp"
#include "search/megatron_roles.hpp"
#include "search/megatron_search.hpp"
#include "search/server_side.hpp"
#include "search/serving.hpp"
#include "search/solve.hpp"
#include "search/trainer_side.hpp"
#include "units/interruption.hpp"
#include "units/sizes.hpp"

namespace oomplan {
namespace {

/// One combination, by index into the verdicts; -1: the job has no such side.
struct Pair {
  std::int64_t trainer = -1, server = -1;
  double seconds = 0;
  int changes = 0;
  Bytes need = 0;
  std::pair<int, int> shape;
  auto rank() const { return std::tuple(seconds, changes, need, trainer, server); }
  auto modesty() const { return std::tuple(need, seconds, changes, trainer, server); }
};

/// Of the combinations of one shape: the fastest, and the one that needs least in case the replay refuses the fastest.
struct Best {
  bool any = false;
  Pair fastest, smallest;
  void offer(const Pair& p) {
    if (!any || p.rank() < fastest.rank()) fastest = p;
    if (!any || p.modesty() < smallest.modesty()) smallest = p;
    any = true;
  }
};

/// Numbers for keys, in the order in which they come.
template <class Key>
class Numbers {
 public:
  int operator()(const Key& key) { return known_.emplace(key, static_cast<int>(known_.size())).first->second; }
  std::size_t size() const { return known_.size(); }

 private:
  std::map<Key, int> known_;
};

class Searcher {
 public:
  Searcher(const Job& job, const Space& space, const Catalog& catalog, TapeStore& store, const std::stop_token& stop,
           const Admit& admit)
      : from_(job),
        job_(with_gpus(job, space)),
        space_(space),
        catalog_(catalog),
        stop_(stop),
        admit_(admit),
        store_(store),
        runs_(resolve_roles(job_, catalog, store)),
        trainers_(job_, space_, catalog, store, runs_),
        servers_(job_, catalog, runs_),
        usable_(catalog.gpu(job_.cluster.gpu).usable - job_.cluster.others),
        likely_trainers_(usable_),
        likely_server_(usable_) {
    for (const auto& role : job_.roles) {
      Bytes& likely = role.serves() ? likely_server_ : likely_trainers_;
      likely = std::min(likely, likely_need(role, usable_, space_.min_probability));
    }
    shared_ = !trainers_.empty() && !servers_.empty() && share_gpus(job_, trainers_.leader(), servers_.role());
    axes_ = axes_of(job_, space_, trainers_.empty() ? nullptr : &trainers_.leader(),
                    servers_.empty() ? nullptr : &servers_.role(), shared_);
  }

  Found run(int keep) {
    Found found;
    until_interrupted(stop_, [&] { look(keep, found); });
    return found;
  }
  /// When nothing was found.
  std::vector<Limit> limits(const Found& found) const {
    if (found.fitting > 0 && refused_.text.empty() && !unexplained_)
      return {{"", "", 0, fmt::format("what fits does so with a probability below {:g}", space_.min_probability)}};
    if (found.fitting > 0) return {unexplained_ ? limit_of(explain_worst(*unexplained_, catalog_, store_)) : refused_};
    return limits_of(job_, trainer_verdicts_, server_verdicts_, trainers_, usable_);
  }

 private:
  void look(int keep, Found& found) {
    for (const auto& [train, serve] : splits(job_.cluster.gpus)) {
      if (stopped()) return;
      const std::size_t t0 = trainer_verdicts_.size(), s0 = server_verdicts_.size();
      if (!trainers_.empty()) judge_trainers(trainer_points(axes_, trainers_.leader(), train));
      if (shared_)
        combine_shared(serve, found);
      else if (trainers_.empty())
        combine_apart(t0, s0, serve, {}, found);
      else
        for (const auto storage : axes_.storage) combine_apart(t0, server_verdicts_.size(), serve, storage, found);
    }
    take_best(keep, found);
  }
  static Job with_gpus(const Job& job, const Space& space) {
    Job out = job;
    if (!space.gpus) return out;
    out.cluster.gpus = *space.gpus;
    if (!written(job, "gpus_per_node")) out.cluster.gpus_per_node = *space.gpus < 8 ? *space.gpus : 8;
    return out;
  }

  /// How many GPUs go to training; the rest generate. On shared GPUs both get all. A layout that is held keeps its GPUs.
  std::vector<std::pair<std::int64_t, std::int64_t>> splits(std::int64_t gpus) const {
    const std::int64_t train = trainers_.empty() ? 0 : trainers_.leader().layout().world(),
                       serve = servers_.empty() ? 0 : servers_.role().layout().world();
    const bool train_held = axes_.trainer_layout_held, serve_held = axes_.server_layout_held;
    if (trainers_.empty()) return {{0, serve_held ? serve : gpus}};
    if (servers_.empty()) return {{train_held ? train : gpus, 0}};
    if (shared_) {
      const std::int64_t all = train_held ? train : serve_held ? serve : gpus;
      return {{all, all}};
    }
    if (train_held) return {{train, serve_held ? serve : gpus - train}};
    if (serve_held) return {{gpus - serve, serve}};
    std::set<std::int64_t> first;
    const std::int64_t step = gpus <= 16 ? 1 : gpus <= 64 ? 4 : 8;
    for (std::int64_t t = step; t < gpus; t += step) first.insert(t);
    if (train + serve == gpus) first.insert(train);  // the job's own
    std::vector<std::pair<std::int64_t, std::int64_t>> out;
    for (const auto t : first) out.emplace_back(t, gpus - t);
    return out;
  }

  bool stopped() const { return stop_.stop_requested(); }

  /// Appends the verdicts in the order of the points, whatever the number of threads.
  void judge_trainers(const std::vector<TrainerPoint>& points) {
    const std::size_t first = trainer_verdicts_.size();
    trainer_verdicts_.resize(first + points.size());
    constexpr std::size_t kPortion = 32;
    std::atomic<std::size_t> next{0};
    const auto work = [&](TrainerSide& side) {
      for (std::size_t at = next.fetch_add(kPortion); at < points.size() && !stopped(); at = next.fetch_add(kPortion))
        for (std::size_t i = at; i < std::min(at + kPortion, points.size()); ++i)
          trainer_verdicts_[first + i] = side.judge(points[i]);
    };
    const auto threads =
        std::min<std::size_t>(static_cast<std::size_t>(std::max(1, space_.threads)), points.size() / kPortion + 1);
    std::vector<std::exception_ptr> failed(threads);
    {
      std::vector<std::jthread> others;
      for (std::size_t t = 1; t < threads; ++t)
        others.emplace_back([&, t] {
          const InterruptionScope scope(stop_);
          try {
            TrainerSide side(job_, space_, catalog_, store_, runs_);
            work(side);
          } catch (...) {
            failed[t] = std::current_exception();
          }
        });
      work(trainers_);
    }
    for (const auto& e : failed)
      if (e) std::rethrow_exception(e);
    for (std::size_t i = first; i < trainer_verdicts_.size(); ++i) {
      auto& v = trainer_verdicts_[i];
      v.changes = changes_of(v.point);
      v.shape = trainer_shapes_({v.point.gpus, v.point.context, static_cast<int>(v.point.recompute),
                                 (v.point.offload_parameters ? 2 : 0) + (v.point.offload_optimizer ? 1 : 0),
                                 static_cast<int>(v.point.storage)});
    }
  }
  /// Index of the first verdict.
  std::size_t judge_servers(std::int64_t gpus, Bytes occupied, DType storage) {
    const std::size_t first = server_verdicts_.size();
    if (servers_.empty()) return first;
    const SyncPlan* receive = trainers_.empty() ? nullptr : trainers_.receive(storage);
    for (const auto& c : server_choices(axes_, servers_.role(), gpus, job_.cluster.gpus_per_node)) {
      if (stopped()) break;
      server_verdicts_.push_back(servers_.judge(c, occupied, receive));
      auto& v = server_verdicts_.back();
      v.changes = changes_of(c);
      v.shape = server_shapes_({c.gpus, c.tensor, c.kv ? static_cast<int>(*c.kv) : -1, 0, 0});
    }
    return first;
  }

  static std::int64_t at_least_one(std::size_t n) { return static_cast<std::int64_t>(std::max<std::size_t>(1, n)); }

  /// On GPUs of their own the two sides do not meet: the best of each are combined.
  /// The format in which trainers store their parameters matters to servers: it is that of the weights that they are sent.
  void combine_apart(std::size_t t0, std::size_t s0, std::int64_t gpus, DType storage, Found& found) {
    judge_servers(gpus, 0, storage);
    const auto stored_so = [&](const TrainerVerdict& v) { return v.point.storage == storage; };
    const auto trainer_fits = [&](std::size_t i) {
      return trainer_verdicts_[i].possible && stored_so(trainer_verdicts_[i]) && trainer_verdicts_[i].need <= usable_;
    };
    const auto server_fits = [&](std::size_t i) {
      return server_verdicts_[i].refusal == ServerRefusal::none && server_verdicts_[i].need <= usable_;
    };
    const Side alone{1, 1, {}, {-1}};
    const Side t = trainers_.empty() ? alone
                                     : thinned(t0, trainer_verdicts_.size(), likely_trainers_, trainer_fits,
                                               [&](std::int64_t i) { return pair(i, -1); });
    const Side s = servers_.empty() ? alone
                                    : thinned(s0, server_verdicts_.size(), likely_server_, server_fits,
                                              [&](std::int64_t i) { return pair(-1, i); });
    found.judged += at_least_one(static_cast<std::size_t>(std::count_if(
                        trainer_verdicts_.begin() + static_cast<std::ptrdiff_t>(t0), trainer_verdicts_.end(), stored_so))) *
                    at_least_one(server_verdicts_.size() - s0);
    found.fitting += t.fit * s.fit;
    found.unlikely += t.fit * s.fit - t.likely * s.likely;
    if (t.fit * s.fit > 0 && (t.fastest.need > likely_trainers_ || s.fastest.need > likely_server_))
      leave_out(pair(t.fastest.trainer, s.fastest.server));
    for (const auto i : t.best)
      for (const auto j : s.best) pairs_.push_back(pair(i, j));
  }
  /// What of one side fits, how much of it is likely to, and of that the best of each shape.
  struct Side {
    std::int64_t fit = 0, likely = 0;
    Pair fastest;  ///< of all that fit
    std::vector<std::int64_t> best;
  };
  template <class Fits, class PairOf>
  static Side thinned(std::size_t first, std::size_t end, Bytes likely, const Fits& fits, const PairOf& pair_of) {
    std::map<std::pair<int, int>, Best> best;
    Side out;
    for (std::size_t i = first; i < end; ++i) {
      if (!fits(i)) continue;
      const Pair p = pair_of(static_cast<std::int64_t>(i));
      if (out.fit++ == 0 || p.rank() < out.fastest.rank()) out.fastest = p;
      if (p.need > likely) continue;
      ++out.likely;
      best[p.shape].offer(p);
    }
    for (const auto& [shape, b] : best)
      for (const Pair* p : {&b.fastest, &b.smallest}) {
        const auto i = std::max(p->trainer, p->server);
        if (out.best.empty() || out.best.back() != i) out.best.push_back(i);
      }
    return out;
  }
  /// One that fits, but not as likely as is asked for.
  void leave_out(const Pair& p) {
    if (!left_out_ || p.rank() < left_out_->rank()) left_out_ = p;
  }

  /// On the same GPUs each side sees what the other holds while it has its turn.
  void combine_shared(std::int64_t gpus, Found& found) {
    // verdicts of all choices for what the trainers hold at the start, and for what they send
    std::map<std::pair<Bytes, DType>, std::pair<std::size_t, std::size_t>> by_occupied;
    std::map<std::pair<int, int>, Best> best;
    for (std::size_t i = 0; i < trainer_verdicts_.size(); ++i) {
      TrainerVerdict& tv = trainer_verdicts_[i];
      if (stopped()) return;
      if (!tv.possible) continue;
      const std::pair occupied{tv.visits.front().held, tv.point.storage};
      auto known = by_occupied.find(occupied);
      if (known == by_occupied.end()) {
        const std::size_t first = judge_servers(gpus, occupied.first, occupied.second);
        known = by_occupied.emplace(occupied, std::pair{first, server_verdicts_.size()}).first;
      }
      const auto [first, end] = known->second;
      found.judged += static_cast<std::int64_t>(end - first);
      tv.together = kNever;
      int shape = -1;
      Best* at = nullptr;
      for (std::size_t j = first; j < end; ++j) {
        ServerVerdict& sv = server_verdicts_[j];
        if (sv.refusal != ServerRefusal::none) continue;
        const Bytes need = need_together(tv.visits, sv);
        tv.together = std::min(tv.together, need);
        if (need > usable_) continue;
        ++found.fitting;
        if (need > std::max(likely_trainers_, likely_server_)) {
          ++found.unlikely;
          leave_out(pair(static_cast<std::int64_t>(i), static_cast<std::int64_t>(j)));
          continue;
        }
        if (sv.shape != shape) at = &best[{tv.shape, shape = sv.shape}];
        Pair p = pair(static_cast<std::int64_t>(i), static_cast<std::int64_t>(j));
        p.need = need;
        at->offer(p);
      }
    }
    for (const auto& [shape, b] : best) {
      pairs_.push_back(b.fastest);
      if (b.smallest.rank() != b.fastest.rank()) pairs_.push_back(b.smallest);
    }
  }

  int changes_of(const TrainerPoint& p) const {
    const Trainer& own = trainers_.leader().trainer;
    return (p.gpus != own.layout.world() || p.context != own.layout.context ? 1 : 0) +
           (p.tokens != own.tokens_per_micro_batch ? 1 : 0) + (p.recompute != own.recompute ? 1 : 0) +
           (p.form != own.optimizer_form ? 1 : 0) +
           (p.offload_parameters != own.offload_parameters || p.offload_optimizer != own.offload_optimizer ? 1 : 0) +
           (p.efficient_load != own.memory_efficient_load ? 1 : 0) + (p.storage != own.storage ? 1 : 0);
  }
  int changes_of(const ServerChoice& c) const {
    const Server& own = servers_.role().server;
    return (c.gpus != own.layout.world() || c.tensor != own.layout.tensor ? 1 : 0) + (c.fraction != own.memory_fraction ? 1 : 0) +
           (c.max_running != own.max_running ? 1 : 0) + (c.kv != own.kv ? 1 : 0);
  }

  Pair pair(std::int64_t t, std::int64_t s) const {
    const TrainerVerdict* trainer = t < 0 ? nullptr : &trainer_verdicts_[static_cast<std::size_t>(t)];
    const ServerVerdict* server = s < 0 ? nullptr : &server_verdicts_[static_cast<std::size_t>(s)];
    const double train = trainer == nullptr ? 0 : trainer->seconds, serve = server == nullptr ? 0 : server->seconds;
    Pair p{t, s, train + serve, 0, 0, {-1, -1}};
    // on shared GPUs they take turns
    if (trainer != nullptr && server != nullptr && !shared_ && trainers_.leader().trainer.loop.generates_while_training)
      p.seconds = std::max(train, serve);
    if (trainer != nullptr) p.changes += trainer->changes, p.need = trainer->need, p.shape.first = trainer->shape;
    if (server != nullptr) p.changes += server->changes, p.need = std::max(p.need, server->need), p.shape.second = server->shape;
    return p;
  }

  Job job_of(const Pair& p) const {
    Job out = job_;
    if (p.trainer >= 0) trainers_.put(trainer_verdicts_[static_cast<std::size_t>(p.trainer)].point, out);
    for (auto& r : out.roles)
      if (r.serves() && p.server >= 0) ServerSide::put(server_verdicts_[static_cast<std::size_t>(p.server)].choice, r.server);
    return out;
  }

  /// The survivors get the replay. Configurations of one shape differ only in how much is spent: the first that fits stands for
  /// all.
  void take_best(int keep, Found& found) {
    std::sort(pairs_.begin(), pairs_.end(), [](const Pair& a, const Pair& b) { return a.rank() < b.rank(); });
    std::set<std::pair<int, int>> taken;
    double best = 0;
    for (const auto& p : pairs_) {
      if (static_cast<int>(found.best.size()) >= keep || stopped()) break;
      if (taken.contains(p.shape)) continue;
      Candidate c;
      c.job = job_of(p);
      if (admit_ && !admit_(c)) {
        refuse({"", "", 0, "what would fit cannot be said in the file"});
        continue;
      }
      // what a framework would only warn of, its reader has let pass
      if (const auto wrong = admit_ ? std::vector<Problem>{} : problems(c.job, catalog_); !wrong.empty()) {
        refuse({"", wrong[0].place.path, 0,
                fmt::format("{}: {}", wrong[0].place.path, wrong[0].why.empty() ? wrong[0].expected : wrong[0].why)});
        continue;
      }
      if (auto e = explain_worst_if_it_fits(c.job, catalog_, store_, processes_)) {
        c.estimate = *std::move(e);
      } else {
        if (refused_.text.empty() && !unexplained_) unexplained_ = std::move(c.job);
        continue;
      }
      if (!c.estimate.fits()) {
        refuse(limit_of(c.estimate));
        continue;
      }
      if (c.estimate.fit_probability.value_or(1) < space_.min_probability) {
        ++found.unlikely;
        leave_out(p);
        continue;
      }
      taken.insert(p.shape);
      if (!admit_) describe_changes(from_, c);
      if (found.best.empty()) best = p.seconds;
      c.relative_step_time = best > 0 ? p.seconds / best : 1;
      found.best.push_back(std::move(c));
    }
    if (left_out_ && best > 0) found.unlikely_step_time = left_out_->seconds / best;
  }
  void refuse(Limit why) {
    if (refused_.text.empty() && !unexplained_) refused_ = std::move(why);
  }

  Job from_, job_;
  Space space_;
  const Catalog& catalog_;
  const std::stop_token& stop_;
  const Admit& admit_;
  TapeStore& store_;
  ProcessStore processes_;
  std::vector<RoleRun> runs_;
  TrainerSide trainers_;
  ServerSide servers_;
  Bytes usable_, likely_trainers_, likely_server_;  ///< the latter with the probability that is asked for
  bool shared_ = false;
  Axes axes_;
  std::vector<TrainerVerdict> trainer_verdicts_;
  std::vector<ServerVerdict> server_verdicts_;
  Numbers<std::tuple<std::int64_t, std::int64_t, int, int, int>> trainer_shapes_, server_shapes_;
  std::vector<Pair> pairs_;
  std::optional<Pair> left_out_;    ///< the fastest that fits, but not as likely as is asked for
  Limit refused_;                   ///< why the first of those that fit by their levels does not run
  std::optional<Job> unexplained_;  ///< it is this one, and is short by more than was looked at
};

/// Machines are not split: sizes that could be rented.
std::int64_t next_size(std::int64_t gpus) { return gpus < 16 ? gpus + 1 : gpus < 64 ? round_up(gpus + 1, 8) : gpus * 2; }

std::optional<std::int64_t> smallest_gpus(const Job& job, Space space, const Catalog& catalog, TapeStore& store,
                                          const std::stop_token& stop, const Admit& admit) {
  constexpr std::int64_t kMost = 1024;
  for (std::int64_t n = next_size(space.gpus.value_or(job.cluster.gpus)); n <= kMost && !stop.stop_requested();
       n = next_size(n)) {
    space.gpus = n;
    if (!Searcher(job, space, catalog, store, stop, admit).run(1).best.empty()) return n;
  }
  return std::nullopt;
}

}  // namespace

/// Overrides that make read() give the candidate: what differs, and what would otherwise follow from it.
void describe_changes(const Job& from, Candidate& c) {
  Job reached = from;
  const auto differ = [&](const Job& before, const auto& then) {
    const auto look = [&](const std::string& key) {
      if (get(before, key) != get(c.job, key)) then(key);
    };
    for (const auto& key : keys_of(nullptr))
      if (key != "model" && key != "framework") look(key);
    for (const auto& role : from.roles)
      for (const auto& key : keys_of(&role)) look(role.name + "." + key);
  };
  differ(from, [&](const std::string& key) {
    const std::string after = get(c.job, key);
    if (get(reached, key) == after) return;  // follows from a change before it: ref is like the actor
    c.changes.push_back({key, get(from, key), after, find_knob(from, key).knob->effect});
    c.overrides.push_back(key + "=" + after);
    set_as_read(reached, key, after);
  });
  std::vector<std::string> pins;
  differ(reached, [&](const std::string& key) { pins.push_back(key); });
  for (const auto& key : pins) c.overrides.push_back(key + "=" + get(c.job, key));
  c.job_file = to_yaml(c.job);
}

Found search(const Job& job, const Space& space, int keep, const Catalog* catalog, std::stop_token stop) {
  check_fixed(job, space);
  Found found;
  until_interrupted(
      stop, [&] { found = search_admitted(job, space, keep, catalog != nullptr ? *catalog : Catalog::builtin(), stop, {}); });
  found.interrupted = stop.stop_requested();
  put_as_it_stands(found, job, space, catalog != nullptr ? *catalog : Catalog::builtin());
  return found;
}

namespace {

/// AReaL's file says other layouts than these points.
bool leads_on_megatron(const Job& job) {
  const auto leader = std::find_if(job.roles.begin(), job.roles.end(), [](const Role& r) { return !r.serves() && learns(r); });
  const auto serve = std::count_if(job.roles.begin(), job.roles.end(), [](const Role& r) { return is_searched_server(r); });
  return leader != job.roles.end() && leader->engine == EngineKind::megatron && !leader->trainer.loop.loss_by_sequence &&
         serve <= 1;
}

Found search_of_its_kind(const Job& job, const Space& space, int keep, const Catalog& c, const std::stop_token& stop,
                         const Admit& admit) {
  for (const Role& role : job.roles)
    if (role.kind == RoleKind::generator)
      throw InputError(Problem{{"", 0, 0, role.name},
                               "a generator",
                               "a role that learns or serves",
                               "",
                               "not supported yet: a search over generators; advise says what helps"});
  const bool alone = job.roles.empty() || !job.roles[0].trainer.loop.runs_megatron;
  if (alone && !admit && job.roles.size() == 1 && job.roles[0].engine == EngineKind::megatron)
    return search_megatron(job, space, keep, c, stop);
  if (leads_on_megatron(job)) return search_megatron_roles(job, space, keep, c, stop, admit);
  if (!space.maximise.empty()) return solve(job, space, keep, c, stop, admit);
  if (serves_alone(job)) return search_serving(job, space, keep, c, stop, admit);
  std::vector<const Role*> anchors, servers;
  for (const auto& r : job.roles) {
    if (r.serves())
      servers.push_back(&r);
    else if (anchors.empty() || anchor(job, r) != anchors.front())
      anchors.push_back(anchor(job, r));
  }
  const auto refuse = [](const Role& role, std::string found, std::string expected, std::string why) {
    throw InputError(Problem{{"", 0, 0, role.name}, std::move(found), std::move(expected), "", std::move(why)});
  };
  if (servers.size() > 1)
    refuse(*servers[1], "a second server", "at most one role that serves", "a search over several servers is not supported yet");
  for (const auto& r : job.roles)
    if (r.engine == EngineKind::megatron)
      refuse(r, "engine megatron", "another engine",
             r.trainer.loop.loss_by_sequence ? "a search over Megatron under AReaL is not supported yet"
                                             : "a search over Megatron beside other engines is not supported yet");
  if (anchors.size() > 1)
    refuse(*anchors[1], "training roles on several groups of GPUs", "training roles that share their GPUs",
           "a search over several groups is not supported yet");
  TapeStore store;
  Searcher searcher(job, space, c, store, stop, admit);
  Found found = searcher.run(keep);
  if (!found.best.empty() || stop.stop_requested()) return found;
  until_interrupted(stop, [&] {
    found.limits = searcher.limits(found);
    found.smallest_gpus = smallest_gpus(job, space, c, store, stop, admit);
  });
  return found;
}

}  // namespace

Found search_admitted(const Job& job, const Space& space, int keep, const Catalog& catalog, const std::stop_token& stop,
                      const Admit& admit) {
  Found found = search_of_its_kind(job, space, keep, catalog, stop, admit);
  found.min_probability = space.min_probability;
  return found;
}

}  // namespace oomplan
