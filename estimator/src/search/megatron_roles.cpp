#include "search/megatron_roles.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <tuple>

#include <fmt/format.h>
#include <oomplan/units/errors.hpp>

#include "estimate/explain.hpp"
#include "estimate/timeline.hpp"
#include "job/follow.hpp"
#include "job/limits.hpp"
#include "job/megatron_losses.hpp"
#include "job/placement.hpp"
#include "job/validate.hpp"
#include "layout/letters.hpp"
#include "search/limits.hpp"
#include "search/megatron_search.hpp"
#include "search/server_side.hpp"
#include "search/solve.hpp"
#include "units/interruption.hpp"
#include "units/sizes.hpp"

namespace oomplan {
namespace {

constexpr Bytes kLeastBucket = 128 * kMiB;  ///< of a weight update
/// What estimates may cost in all, in pipeline stages: each is a class of GPUs of its own.
constexpr std::int64_t kStagesInAll = 64;
constexpr std::int64_t kLogProbRows = 1024;  ///< of a chunk, where the loss is cut into chunks

/// What a trainer may do beside its layout.
struct Way {
  std::int64_t tokens = 0;
  bool chunks = false;  ///< the loss takes kLogProbRows rows at once
  bool host = false;    ///< the optimizer works on the host
  bool operator==(const Way&) const = default;
};

struct Point {
  std::size_t way = 0;
  MegatronCandidate at;
  int changes = 0;  ///< settings that differ from the job's
};

/// Times that differ by less than a hundredth are equal to a model without efficiencies: then the fewest changes count.
std::int64_t time_class(double seconds) { return seconds > 0 ? std::llround(std::log(seconds) * 100) : 0; }
using LayoutKey = std::tuple<std::int64_t, std::int64_t, std::int64_t, std::int64_t, std::int64_t>;

/// Slower ones stay where they need less than all that are faster.
template <class T, class Rank, class Need>
std::vector<T> front_of(std::vector<T> all, const Rank& rank, const Need& need) {
  std::stable_sort(all.begin(), all.end(), [&](const T& a, const T& b) { return rank(a) < rank(b); });
  std::vector<T> out;
  for (T& one : all)
    if (out.empty() || need(one) < need(out.back())) out.push_back(std::move(one));
  return out;
}

/// The first that fits of a front, along which the need falls: the fastest, then the least, then by halves.
template <class T, class Fits>
const T* first_that_fits(const std::vector<T>& front, const Fits& fits) {
  if (front.empty()) return nullptr;
  if (fits(front.front())) return &front.front();
  if (front.size() == 1 || !fits(front.back())) return nullptr;
  std::size_t fails = 0, good = front.size() - 1;
  while (good - fails > 1) {
    const std::size_t middle = fails + (good - fails) / 2;
    (fits(front[middle]) ? good : fails) = middle;
  }
  return &front[good];
}

class RolesSearcher {
 public:
  RolesSearcher(const Job& from, const Space& space, const Catalog& catalog, const std::stop_token& stop, const Admit& admit)
      : from_(from),
        job_(from),
        space_(space),
        catalog_(catalog),
        stop_(stop),
        admit_(admit),
        runs_(resolve_roles(job_, catalog, store_)),
        servers_(job_, catalog, runs_),
        usable_(catalog.gpu(job_.cluster.gpu).usable - job_.cluster.others) {
    for (const Role& r : job_.roles)
      if (leader_ == nullptr && !r.serves() && learns(r)) leader_ = &r;
    shared_ = !servers_.empty() && share_gpus(job_, *leader_, servers_.role());
    alone_ = job_;
    alone_.cluster.gpus = leader_->trainer.layout.world();
  }

  Found run(int keep) {
    Found found;
    until_interrupted(stop_, [&] { look(keep, found); });
    return found;
  }

 private:
  void look(int keep, Found& found) {
    choose_servers();
    const std::map<LayoutKey, std::vector<Point>> layouts = judge(found);
    estimate_all(layouts, found);
    // nothing fits: perhaps with less of the weights on the way at once
    if (best_.empty() && found.unlikely == 0 && job_.sync.bucket > kLeastBucket && !held(space_, nullptr, "sync.bucket")) {
      job_.sync.bucket = kLeastBucket;
      stages_ = 0;
      estimate_all(layouts, found);
    }
    finish(keep, found);
  }

  void estimate_all(const std::map<LayoutKey, std::vector<Point>>& layouts, Found& found) {
    std::vector<const std::vector<Point>*> order;
    for (const auto& [shape, points] : layouts) order.push_back(&points);
    std::stable_sort(order.begin(), order.end(),
                     [](const auto* a, const auto* b) { return a->front().at.seconds < b->front().at.seconds; });
    for (const auto* points : order) {
      if (stages_ >= kStagesInAll || stop_.stop_requested()) break;
      const ServerChoice* server = choices_.empty() ? nullptr : &choices_.front();
      first_that_fits(*points, [&](const Point& p) { return take(p, server, found); });
    }
    if (!best_.empty()) {
      const Point fastest = std::min_element(best_.begin(), best_.end(), faster)->point;
      for (std::size_t i = 1; i < choices_.size(); ++i) take(fastest, &choices_[i], found);
    }
  }

  struct Taken {
    Point point;
    double seconds = 0;
    Candidate candidate;
  };
  static bool faster(const Taken& a, const Taken& b) { return a.seconds < b.seconds; }

  // ---- servers

  /// Of every number of tensor ranks the fastest choice with which the job's own trainers leave it room; the fastest of all
  /// first.
  void choose_servers() {
    if (servers_.empty()) return;
    const Role& role = servers_.role();
    const Axes axes = axes_of(job_, space_, nullptr, &role, shared_);
    std::map<std::int64_t, std::vector<ServerVerdict>> by_tensor;
    for (const ServerChoice& c : server_choices(axes, role, role.layout().world(), job_.cluster.gpus_per_node)) {
      ServerVerdict v = servers_.judge(c, 0, nullptr);
      if (v.refusal != ServerRefusal::none || v.need > usable_) continue;
      v.changes = changes_of(c);
      by_tensor[c.tensor].push_back(std::move(v));
    }
    std::vector<ServerVerdict> good;
    for (auto& [tensor, verdicts] : by_tensor) {
      const auto front = front_of(
          std::move(verdicts), [](const ServerVerdict& v) { return std::tuple(time_class(v.seconds), v.changes, v.need); },
          [](const ServerVerdict& v) { return v.need; });
      if (const ServerVerdict* v = first_that_fits(front, [&](const auto& one) { return runs(one.choice); })) good.push_back(*v);
    }
    std::stable_sort(good.begin(), good.end(), [](const auto& a, const auto& b) {
      return std::tuple(time_class(a.seconds), a.changes) < std::tuple(time_class(b.seconds), b.changes);
    });
    for (const ServerVerdict& v : good) {
      choices_.push_back(v.choice);
      seconds_.push_back(v.seconds);
    }
    if (choices_.empty()) {  // then the answer says why
      choices_.push_back(own_choice());
      seconds_.push_back(servers_.judge(choices_.front(), 0, nullptr).seconds);
    }
  }
  ServerChoice own_choice() const {
    const Server& s = servers_.role().server;
    return {s.layout.world(), s.layout.tensor, s.memory_fraction, s.max_running, s.kv};
  }
  int changes_of(const ServerChoice& c) const {
    const ServerChoice own = own_choice();
    return (c.tensor != own.tensor ? 1 : 0) + (c.fraction != own.fraction ? 1 : 0) + (c.max_running != own.max_running ? 1 : 0) +
           (c.kv != own.kv ? 1 : 0);
  }
  /// Do servers start and work so beside the job's own trainers?
  bool runs(const ServerChoice& c) const {
    Job job = job_;
    put(c, job);
    if (!problems(job, catalog_).empty()) return false;
    const Estimate e = estimate_quick(job, &catalog_);
    for (const ServerAnswer& s : e.servers)
      if (s.role == servers_.role().name && s.refused) return false;
    for (const GpuAnswer& gpu : e.gpus)
      for (const auto& phase : gpu.phases)
        if (phase.role == servers_.role().name && phase.usage.capacity_needed > gpu.usable) return false;
    return true;
  }
  void put(const ServerChoice& c, Job& job) const {
    for (Role& r : job.roles)
      if (r.name == servers_.role().name) ServerSide::put(c, r.server);
  }

  // ---- trainers

  std::vector<Way> ways() const {
    const Trainer& t = leader_->trainer;
    const auto is_free = [&](std::string_view knob) { return space_.allow >= Effect::speed && !held(space_, leader_, knob); };
    const Way own{t.tokens_per_micro_batch, false, false};
    std::vector<Way> out{own};
    const std::int64_t least = std::max<std::int64_t>(1, job_.prompt_tokens + job_.response_tokens);
    if (t.sequences_per_micro_batch == 0 && t.tokens_per_micro_batch > 0 && is_free("tokens_per_micro_batch")) {
      for (const std::int64_t tokens : {own.tokens / 4, own.tokens / 2, own.tokens * 2, own.tokens * 4})
        if (tokens >= least && kTokenLimit.holds(tokens)) out.push_back({tokens, false, false});
      if (least < own.tokens) out.push_back({round_up(least, 256), false, false});
    }
    const std::size_t budgets = out.size();
    if (is_slimes(t.megatron.loss) && t.megatron.log_probs_chunk == 0 && is_free("log_probs_chunk_size") &&
        is_free("recompute_loss_function"))
      for (std::size_t i = 0; i < budgets; ++i) out.push_back({out[i].tokens, true, false});
    const bool on_host = t.megatron.host_optimizer || t.megatron.stateless_adam || !t.megatron.distributed_optimizer;
    // Megatron wants the precision-aware optimizer beside it, which rounds otherwise
    const bool may = t.megatron.precision_aware || (space_.allow >= Effect::numerics && is_free("precision_aware_optimizer"));
    if (!on_host && may && is_free("optimizer_cpu_offload")) {
      const std::size_t all = out.size();
      for (std::size_t i = 0; i < all; ++i) out.push_back({out[i].tokens, out[i].chunks, true});
    }
    return out;
  }
  static void put(const Way& w, Trainer& t) {
    t.tokens_per_micro_batch = w.tokens;
    if (w.chunks) {
      t.megatron.log_probs_chunk = kLogProbRows;
      t.megatron.recompute_loss = true;
    }
    if (w.host) t.megatron.host_optimizer = t.megatron.precision_aware = true;
  }
  /// A step on the host: gradients down and parameters up over PCIe 5.0 with 16 lanes (32 GT/s, 128 of 130 bits), and there
  /// gradients, masters and two states read and all but the first written, by two sockets with eight channels of DDR5-4800 each
  /// (38.4 GB/s a channel) for eight GPUs. Peaks of the standards, without an efficiency.
  double seconds_on_host(const Way& w, const MegatronCandidate& c, const MegatronAxes& axes) const {
    if (!w.host) return 0;
    constexpr double kLinkBytes = 4 + 2, kLink = 6.3e10, kMemoryBytes = 7 * 4, kMemory = 7.68e10;
    const MegatronRanks& r = axes.ranks[c.ranks];
    const double ranks = static_cast<double>(c.data * r.tensor * r.context * axes.splits[c.split].pipeline);
    return cost_of(*leader_->architecture).parameters / ranks * (kLinkBytes / kLink + kMemoryBytes / kMemory);
  }

  std::map<LayoutKey, std::vector<Point>> judge(Found& found) {
    std::map<LayoutKey, std::vector<Point>> by_layout;
    ways_ = ways();
    for (std::size_t w = 0; w < ways_.size() && !stop_.stop_requested(); ++w) {
      Role role = *leader_;
      put(ways_[w], role.trainer);
      MegatronBound bound(alone_, role, catalog_);
      axes_.push_back(megatron_axes(alone_, role, space_));
      batches_.push_back(megatron_batch(alone_, role, space_));
      const MegatronJudged judged = judge_megatron(axes_[w], bound, alone_.cluster.gpus, batches_[w], usable_, stop_);
      found.judged += judged.points * std::max<std::int64_t>(1, std::ssize(choices_));
      for (const MegatronCandidate& c : judged.candidates) {
        Point p{w, c};
        p.at.seconds += seconds_on_host(ways_[w], c, axes_[w]);
        p.changes = changes_of(p);
        by_layout[key_of_layout(p)].push_back(p);
      }
      if (judged.points > 0 && judged.smallest.least < smallest_.at.least) smallest_ = {w, judged.smallest};
      if (w == 0) own_seconds_ = seconds_of_own(bound, role);
    }
    for (auto& [shape, points] : by_layout)
      points = front_of(
          std::move(points), [](const Point& p) { return std::tuple(time_class(p.at.seconds), p.changes, p.at.least); },
          [](const Point& p) { return p.at.least; });
    return by_layout;
  }
  double seconds_of_own(MegatronBound& bound, const Role& role) const {
    const Trainer& t = role.trainer;
    const Megatron& m = t.megatron;
    const Layout& l = t.layout;
    return bound.seconds({l.pipeline, m.virtual_stages, m.first_stage_layers, m.last_stage_layers},
                         {l.tensor, l.context, l.expert, l.expert_tensor, m.sequence_parallel},
                         {t.recompute, m.recompute_method, m.recompute_layers, m.recompute_modules}, l.data,
                         micro_batches_of(batches_.front(), l.data));
  }
  int changes_of(const Point& p) const {
    const Trainer& t = leader_->trainer;
    const Megatron& m = t.megatron;
    const MegatronAxes& axes = axes_[p.way];
    const MegatronSplit split{t.layout.pipeline, m.virtual_stages, m.first_stage_layers, m.last_stage_layers};
    const MegatronRanks ranks{t.layout.tensor, t.layout.context, t.layout.expert, t.layout.expert_tensor, m.sequence_parallel};
    const MegatronRecompute recompute{t.recompute, m.recompute_method, m.recompute_layers, m.recompute_modules};
    const Way& way = ways_[p.way];
    return (axes.splits[p.at.split] != split ? 1 : 0) + (axes.ranks[p.at.ranks] != ranks ? 1 : 0) +
           (axes.recompute[p.at.recompute] != recompute ? 1 : 0) + (way.tokens != t.tokens_per_micro_batch ? 1 : 0) +
           (way.chunks ? 1 : 0) + (way.host ? 1 : 0);
  }
  LayoutKey key_of_layout(const Point& p) const {
    const MegatronRanks& r = axes_[p.way].ranks[p.at.ranks];
    return {r.tensor, r.context, r.expert, r.expert_tensor, axes_[p.way].splits[p.at.split].pipeline};
  }
  /// Roles on the leader's GPUs that had its layout go along in what is not held fixed.
  void put(const Point& p, Job& job) const {
    const MegatronAxes& axes = axes_[p.way];
    for (Role& r : job.roles) {
      if (r.serves() || r.engine != EngineKind::megatron) continue;
      const Role& before = *job_.role(r.name);
      const bool leads = r.name == leader_->name;
      if (!leads && (anchor(job_, before) != anchor(job_, *leader_) || !(before.trainer.layout == leader_->trainer.layout)))
        continue;
      put_megatron(axes.splits[p.at.split], axes.ranks[p.at.ranks], axes.recompute[p.at.recompute], p.at.data, batches_[p.way],
                   r.trainer);
      put(ways_[p.way], r.trainer);
      if (!leads) keep_own(before, r.trainer);
    }
  }
  void keep_own(const Role& before, Trainer& t) const {
    const auto is_held = [&](std::string_view knob) { return held(space_, &before, knob); };
    const Trainer& own = before.trainer;
    constexpr std::array<std::string_view, 5> kLayout{"layout", "sequence_parallel", "virtual_stages", "first_stage_layers",
                                                      "last_stage_layers"};
    if (std::any_of(kLayout.begin(), kLayout.end(), is_held)) {
      t.layout = own.layout;
      t.megatron.sequence_parallel = own.megatron.sequence_parallel;
      t.megatron.virtual_stages = own.megatron.virtual_stages;
      t.megatron.first_stage_layers = own.megatron.first_stage_layers;
      t.megatron.last_stage_layers = own.megatron.last_stage_layers;
    }
    if (!learns(before) || is_held("recompute")) {
      t.recompute = own.recompute;
      t.megatron.recompute_method = own.megatron.recompute_method;
      t.megatron.recompute_layers = own.megatron.recompute_layers;
      t.megatron.recompute_modules = own.megatron.recompute_modules;
    }
    if (is_held("tokens_per_micro_batch") || own.tokens_per_micro_batch != leader_->trainer.tokens_per_micro_batch)
      t.tokens_per_micro_batch = own.tokens_per_micro_batch;
    if (!learns(before)) {
      t.megatron.log_probs_chunk = own.megatron.log_probs_chunk;
      t.megatron.recompute_loss = own.megatron.recompute_loss;
      t.megatron.host_optimizer = own.megatron.host_optimizer;
      t.megatron.precision_aware = own.megatron.precision_aware;
    }
  }

  // ---- both

  /// Estimates it, and keeps it where it fits as is asked.
  bool take(const Point& p, const ServerChoice* server, Found& found) {
    stages_ += axes_[p.way].splits[p.at.split].pipeline;
    ++found.estimated;
    Taken t;
    t.point = p;
    t.seconds = together(p.at.seconds, server == nullptr ? 0 : seconds_[static_cast<std::size_t>(server - choices_.data())]);
    Candidate& c = t.candidate;
    c.job = job_;
    put(p, c.job);
    if (server != nullptr) put(*server, c.job);
    try {
      if (admit_ && !admit_(c)) return refuse({"", "", 0, "what would fit cannot be said in the file"});
      if (!admit_ && !problems(c.job, catalog_).empty()) return false;
      auto e = explain_worst_if_it_fits(c.job, catalog_, store_, processes_);
      if (!e || !e->fits()) {
        unexplained_ = std::move(c.job);
        return false;
      }
      c.estimate = *std::move(e);
    } catch (const InputError&) {  // what the layers themselves refuse
      return false;
    }
    ++found.fitting;
    if (c.estimate.fit_probability.value_or(1) < space_.min_probability) {
      ++found.unlikely;
      left_out_ = left_out_ > 0 ? std::min(left_out_, t.seconds) : t.seconds;
      return false;
    }
    if (!admit_) describe_changes(from_, c);
    best_.push_back(std::move(t));
    return true;
  }
  double together(double train, double serve) const {
    const bool at_once = !servers_.empty() && !shared_ && leader_->trainer.loop.generates_while_training;
    return at_once ? std::max(train, serve) : train + serve;
  }
  bool refuse(Limit why) {
    if (refused_.text.empty()) refused_ = std::move(why);
    return false;
  }
  void finish(int keep, Found& found) {
    if (best_.empty()) {
      if (!stop_.stop_requested()) explain_nothing(found);
      return;
    }
    const double fastest = std::max(1e-9, std::min_element(best_.begin(), best_.end(), faster)->seconds);
    // as they are printed, the fewest changes first among equals
    const auto printed = [&](const Taken& t) {
      return std::tuple(std::llround(100 * t.seconds / fastest), t.candidate.changes.size(), t.seconds);
    };
    std::stable_sort(best_.begin(), best_.end(), [&](const Taken& a, const Taken& b) { return printed(a) < printed(b); });
    for (Taken& t : best_) {
      if (std::ssize(found.best) >= keep) break;
      t.candidate.relative_step_time = t.seconds / fastest;
      found.best.push_back(std::move(t.candidate));
    }
    if (left_out_ > 0) found.unlikely_step_time = left_out_ / fastest;
    Candidate now;
    now.job = from_;  // job_ may have another bucket by now
    now.estimate = estimate(from_, &catalog_);
    const double serve = servers_.empty() ? 0 : servers_.judge(own_choice(), 0, nullptr).seconds;
    now.relative_step_time = together(own_seconds_, serve) / fastest;
    found.as_it_stands = std::move(now);
  }
  void explain_nothing(Found& found) const {
    const std::string key = leader_->name + ".layout";
    if (found.unlikely > 0) {
      found.limits = {{"", key, 0, fmt::format("what was estimated fits with a probability below {:g}", space_.min_probability)}};
    } else if (unexplained_) {
      found.limits = {limit_of(explain_worst(*unexplained_, catalog_, store_))};
    } else if (!refused_.text.empty()) {
      found.limits = {refused_};
    } else if (smallest_.at.least == kNever) {
      found.limits = {{"", key, 0,
                       "no layout of these GPUs divides the layers, heads, experts and batch as Megatron asks, or none that the "
                       "engine describes"}};
    } else {
      Job job = job_;
      put(smallest_, job);
      const double gib = static_cast<double>(smallest_.at.least) / static_cast<double>(kGiB);
      found.limits = {
          {leader_->name + ".backward", key, std::max<Bytes>(0, smallest_.at.least - usable_),
           fmt::format("{} needs least, and at least {:.2f} GiB", letters(job.role(leader_->name)->trainer.layout), gib)}};
    }
  }

  const Job& from_;
  Job job_, alone_;  ///< the latter: of the trainers' GPUs
  const Space& space_;
  const Catalog& catalog_;
  const std::stop_token& stop_;
  const Admit& admit_;
  mutable TapeStore store_;
  ProcessStore processes_;
  std::vector<RoleRun> runs_;
  ServerSide servers_;
  Bytes usable_;
  const Role* leader_ = nullptr;
  bool shared_ = false;
  std::vector<ServerChoice> choices_;
  std::vector<double> seconds_;  ///< of choices_
  std::vector<Way> ways_;
  std::vector<MegatronAxes> axes_;      ///< of ways_
  std::vector<MegatronBatch> batches_;  ///< of ways_
  Point smallest_{0, {0, 0, 0, 0, kNever, 0}};
  double own_seconds_ = 0;
  std::vector<Taken> best_;
  std::int64_t stages_ = 0;  ///< of what was estimated
  double left_out_ = 0;
  Limit refused_;
  std::optional<Job> unexplained_;
};

}  // namespace

Found search_megatron_roles(const Job& job, const Space& space, int keep, const Catalog& catalog, const std::stop_token& stop,
                            const Admit& admit) {
  if (space.gpus && *space.gpus != job.cluster.gpus)
    throw InputError(Problem{{"", 0, 0, "--gpus"},
                             fmt::format("{}", *space.gpus),
                             fmt::format("the {} of the job", job.cluster.gpus),
                             "",
                             "not supported yet: another number of GPUs for several roles of which one is on Megatron"});
  for (const Role& role : job.roles)
    if (role.engine == EngineKind::megatron && learns(role)) refuse_what_is_not_searched(role, space);
  return RolesSearcher(job, space, catalog, stop, admit).run(keep);
}

}  // namespace oomplan
