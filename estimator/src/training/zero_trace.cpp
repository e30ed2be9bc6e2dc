#include "training/zero_trace.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <map>
#include <utility>

namespace oomplan {
namespace {

class Coordinator {
 public:
  Coordinator(const std::vector<ZeroParameter>& parameters, const std::vector<ZeroCall>& calls, const Zero& zero, bool one_by_one)
      : parameters_(parameters), zero_(zero), one_by_one_(one_by_one), states_(parameters.size()) {
    for (std::size_t i = 0; i < parameters.size(); ++i)
      if (parameters[i].stays) states_[i].status = Status::available;
    for (const ZeroCall& call : calls) {
      if (call.moment != UseMoment::begins) continue;
      for (const int p : call.parameters) queue_.push_back({p, static_cast<std::int64_t>(order_.size())});
      order_.push_back(&call);
    }
  }

  ZeroTrace run(const std::vector<ZeroCall>& calls) {
    for (const ZeroCall& call : calls) {
      switch (call.moment) {
        case UseMoment::begins:
          fetch(call);
          break;
        case UseMoment::ran:
          for (const int p : call.parameters) drop_saved(p);
          break;
        case UseMoment::ends:
          release(call);
          break;
        case UseMoment::opens:
        case UseMoment::closes:
          break;  // of a tape, not of a call
      }
      out_.actions.push_back(std::move(now_));
      now_.clear();
    }
    finish();
    out_.at_end = std::move(now_);
    return std::move(out_);
  }

 private:
  enum class Status : std::uint8_t { partitioned, in_flight, available };
  struct State {
    Status status = Status::partitioned;
    int group = -1;                                                       ///< whose buffer it is in flight in
    bool waits = false;                                                   ///< in the registry of what is in flight
    bool saved = false;                                                   ///< by a recomputation, for a node that has not run
    bool apart = false;                                                   ///< what is saved is no longer the module's buffer
    bool again = false;                                                   ///< the module's buffer is the second one
    std::vector<int> active;                                              ///< modules that work with it
    std::int64_t fetched_for = std::numeric_limits<std::int64_t>::min();  ///< most recent step that it was fetched for
  };
  struct Queued {
    int parameter;
    std::int64_t step;
  };
  State& state(int p) { return states_[static_cast<std::size_t>(p)]; }
  std::int64_t elements(int p) const { return parameters_[static_cast<std::size_t>(p)].elements; }
  void act(ZeroAction::Kind kind, int of, bool again = false) { now_.push_back({kind, of, again}); }

  void gather(const std::vector<int>& asked) {
    std::vector<int> group;
    for (const int p : asked)
      if (state(p).status == Status::partitioned) group.push_back(p);
    if (group.empty()) return;
    const bool together = group.size() > 1 && !one_by_one_;
    const int number = static_cast<int>(out_.groups.size());
    for (const int p : group) {
      available_ += elements(p);
      state(p).status = Status::in_flight;
      state(p).waits = true;
      state(p).group = together ? number : -1;
      if (!together) act(ZeroAction::Kind::gather, p, state(p).again = state(p).apart);
    }
    if (!together) return;
    act(ZeroAction::Kind::gather_together, number);
    out_.groups.push_back(group);
    waiting_.push_back(static_cast<int>(group.size()));
  }
  /// All of a group are copied out as soon as one is asked for; its buffer is held until the last one was.
  void wait(int p) {
    State& s = state(p);
    if (!s.waits) return;
    s.waits = false;
    if (s.group < 0) {
      s.status = Status::available;
      return;
    }
    for (const int member : out_.groups[static_cast<std::size_t>(s.group)]) {
      if (state(member).status != Status::in_flight || state(member).group != s.group) continue;
      state(member).status = Status::available;
      act(ZeroAction::Kind::copy_out, member, state(member).again = state(member).apart);
    }
    if (--waiting_[static_cast<std::size_t>(s.group)] == 0) act(ZeroAction::Kind::drop_together, s.group);
  }

  void fetch(const ZeroCall& call) {
    gather(call.parameters);
    std::vector<int> unforeseen;
    for (const int p : call.parameters) {
      wait(p);
      state(p).active.push_back(call.module);
      if (call.within >= 0 && parameters_[static_cast<std::size_t>(p)].frozen) {
        state(p).active.push_back(call.within);
        of_recomputation_[call.within].push_back(p);
      }
      if (state(p).fetched_for < step_) unforeseen.push_back(p);
    }
    for (const int p : call.saved) state(p).saved = true;
    std::vector<int> taken;
    while (!queue_.empty() && taken.size() < unforeseen.size()) {
      const Queued next = take();
      state(next.parameter).fetched_for = next.step;
      if (std::find(taken.begin(), taken.end(), next.parameter) == taken.end()) taken.push_back(next.parameter);
    }
    gather_ahead();
    ++step_;
  }
  Queued take() {
    const Queued next = queue_.front();
    queue_.pop_front();
    return next;
  }
  void gather_ahead() {
    if (zero_.prefetch_bucket <= 0) return;
    const std::int64_t most = std::min(zero_.max_live - available_, zero_.prefetch_bucket);
    std::int64_t ahead = 0;
    std::vector<int> chosen;
    while (!queue_.empty() && ahead < most) {
      const Queued next = take();
      State& s = state(next.parameter);
      const bool known = std::find(chosen.begin(), chosen.end(), next.parameter) != chosen.end();
      s.fetched_for = std::max(s.fetched_for, next.step);
      if (s.status != Status::partitioned || known) continue;
      chosen.push_back(next.parameter);
      ahead += elements(next.parameter);
    }
    gather(chosen);
  }

  void release(const ZeroCall& call) {
    if (call.reduces) act(ZeroAction::Kind::reduce_waiting, 0);
    std::vector<int> going;
    for (const int p : call.parameters)
      if (!parameters_[static_cast<std::size_t>(p)].stays && state(p).fetched_for <= step_) going.push_back(p);
    keep_what_is_used_again(going, call.whole);
    std::vector<int> released = call.parameters;
    if (call.derives)
      for (const int p : std::exchange(of_recomputation_[call.module], {})) {
        if (std::find(released.begin(), released.end(), p) == released.end()) released.push_back(p);
        if (!parameters_[static_cast<std::size_t>(p)].stays) going.push_back(p);
      }
    for (const int p : released) {
      std::vector<int>& active = state(p).active;
      std::erase(active, call.module);
      const bool goes = std::find(going.begin(), going.end(), p) != going.end();
      if (goes && active.empty() && state(p).status == Status::available) let_go(p);
    }
  }
  /// Looks into modules inside of those that follow when a whole one is released, and into none of a whole one when another is
  /// (__params_to_release: iter_params(module, recurse=z3_leaf_module(submodule_to_release))).
  void keep_what_is_used_again(std::vector<int>& going, bool whole) const {
    std::int64_t passed = 0;
    for (std::size_t s = static_cast<std::size_t>(step_); s < order_.size() && passed < zero_.max_reuse_distance; ++s) {
      const auto pass = [&](int p) {
        std::erase(going, p);
        passed += elements(p);
      };
      if (whole || !order_[s]->whole) std::for_each(order_[s]->parameters.begin(), order_[s]->parameters.end(), pass);
      if (whole) std::for_each(order_[s]->contained.begin(), order_[s]->contained.end(), pass);
    }
  }
  void let_go(int p) {
    State& s = state(p);
    s.status = Status::partitioned;
    available_ -= elements(p);
    if (s.saved && !s.apart)
      s.apart = true;
    else
      act(ZeroAction::Kind::release, p, s.again);
  }
  void drop_saved(int p) {
    State& s = state(p);
    if (s.apart) act(ZeroAction::Kind::drop_saved, p);
    s.saved = s.apart = false;
  }
  /// release_and_reset_all, in front of the step.
  void finish() {
    for (std::size_t i = 0; i < states_.size(); ++i) {
      const int p = static_cast<int>(i);
      wait(p);
      if (!parameters_[i].stays && states_[i].status == Status::available) let_go(p);
    }
  }

  const std::vector<ZeroParameter>& parameters_;
  const Zero& zero_;
  bool one_by_one_;
  std::vector<State> states_;
  std::map<int, std::vector<int>> of_recomputation_;  ///< of a module in its backward pass: frozen parameters, as of `within`
  std::deque<Queued> queue_;                          ///< what will be used, in order
  std::vector<const ZeroCall*> order_;                ///< the fetches
  std::vector<int> waiting_;                          ///< of every group: parameters that were not asked for yet
  std::vector<ZeroAction> now_;
  ZeroTrace out_;
  std::int64_t step_ = 0, available_ = 0;
};

}  // namespace

ZeroTrace trace_gathers(const std::vector<ZeroParameter>& parameters, const std::vector<ZeroCall>& calls, const Zero& zero,
                        bool one_by_one) {
  return Coordinator(parameters, calls, zero, one_by_one).run(calls);
}

}  // namespace oomplan
