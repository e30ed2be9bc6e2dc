// DeepSpeed's ZeRO, stages 1 to 3: one training step as a memory program.
//
// deepspeedai/DeepSpeed 0.19.6, runtime/zero:
//   stages 1, 2  (stage_1_and_2.py) parameters are one flat tensor on every rank. Gradients go into a bucket, their own tensors
//   go;
//                a full bucket is reduced, and what this rank updates is copied out of it. Stage 1 does this when the last
//                micro-batch is over, stage 2 as gradients come.
//   stage 3      (stage3.py, partitioned_param_coordinator.py) every module gathers its parameters in front of its forward and of
//                its backward pass and, while fewer than max_live are there, those that come next (zero_trace.hpp). A full bucket
//                is copied rank by rank and reduced; the shards go where they are added up.
#pragma once
#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "training/engine_sites.hpp"
#include "training/plan.hpp"
#include "training/player.hpp"
#include "training/zero_gradients.hpp"

namespace oomplan {

template <class R>
class ZeroEngine : EngineSites<R> {
  using EngineSites<R>::site, EngineSites<R>::prefix;

 public:
  /// `role` stands before the names of sites. REQUIRES: the plan has a ZeroPlan.
  ZeroEngine(R& r, const TrainPlan& plan, std::string_view role)
      : EngineSites<R>(r, role), r_(r), plan_(plan), zero_(*plan.zero), gradients_(r, plan, role), micro_(Index(0)) {
    const auto resident = [this](std::string_view name, Bytes bytes, Category category) {
      return site("", name, bytes, category, Holder::resident);
    };
    const bool parts = zero_.stage == 3;
    parameters_ = resident(parts ? "parameter_shards" : "parameters", zero_.parameters, Category::weights);
    persistent_ = resident("persistent_parameters", zero_.persistent, Category::weights);
    outside_ = resident("parameters_read_by_the_head", zero_.outside, Category::weights);
    master_ = resident("master_parameters", zero_.master, Category::weights);
    states_ = resident("optimizer.states", zero_.states, Category::optimizer);
    buffers_ = resident("buffers", plan.buffers, Category::buffers);
    at_load_ = site("", "second_copy_at_load", zero_.at_load, Category::weights, Holder::local);
    host_parameters_ = host("parameters on the host", zero_.host_parameters);
    host_master_ = host("master parameters on the host", zero_.host_master);
    host_states_ = host("optimizer states on the host", zero_.host_states);
    host_gradients_ = host("gradients on the host", zero_.host_gradients);
    checkpoint_ = host("layer.checkpoint on the host", zero_.checkpoint);
    if constexpr (R::kWrites) register_gathers();
  }

  void load() {
    r_.alloc(parameters_);
    r_.alloc(host_parameters_);
    r_.alloc(buffers_);
    if (zero_.trains) {
      r_.alloc(master_);
      r_.alloc(host_master_);
      r_.alloc(host_gradients_);
      r_.alloc(at_load_);
      r_.free(at_load_);
      gradients_.load();
    }
    r_.alloc(persistent_);
  }
  void make_states() {
    r_.alloc(states_);
    r_.alloc(host_states_);
  }
  /// What the model reads past a module is gathered with the first pass behind a step.
  void before_forward() {
    if (!outside_held_) r_.alloc(outside_);
    outside_held_ = true;
  }

  void forward(Player<R>& player, Index micro) {
    remember(micro);
    const Tape& tape = player.tape();
    for (std::size_t s = 0; s < tape.stations.size(); ++s)
      each_unit(player, s, false, [&](Unit u, Index at, std::int64_t number) {
        play(player, s, false, u, at, number);
        if (keeps_inputs(tape.stations[s])) r_.alloc(checkpoint_, at + checkpoints_before(tape, s));
      });
  }

  /// `first`: the step's first micro-batch; `last`: gradients are complete.
  void backward(Player<R>& player, Index micro, bool first, bool last) {
    remember(micro);
    first_ = first;
    last_ = last;
    gradients_.begin(first);
    const Tape& tape = player.tape();
    for (std::size_t s = tape.stations.size(); s-- > 0;)
      each_unit(player, s, true, [&](Unit u, Index at, std::int64_t number) {
        play(player, s, true, u, at, number);
        if (keeps_inputs(tape.stations[s])) r_.free(checkpoint_, at + checkpoints_before(tape, s));
      });
    if (zero_.buckets_at_end && last) reduce_all(player);
    gradients_.end(player, place_of_gradients(), last);
    act(player, zero_.at_end);
  }

  void optimizer_step() {
    if (outside_held_) r_.free(outside_);
    outside_held_ = false;
    r_.free(persistent_);  // release_and_reset_all lets go of them too; _post_step gathers them again
    gradients_.step();
    r_.alloc(persistent_);
  }

 private:
  /// A parameter or group that is gathered: its site, and its number there. `again`: a parameter's second buffer.
  struct Gathered {
    SiteRef whole, shard, again;
    Index at;
  };

  struct Waiting {
    const LeftGradient* gradient;
    Index at;
    std::int64_t number;
  };

  SiteRef host(std::string_view name, Bytes bytes) {
    if constexpr (R::kWrites) {
      Site row;
      row.name = this->named("", name);
      row.bytes = bytes;
      row.category = Category::host_copy;
      row.pool = Pool::pageable;
      row.holder = Holder::resident;
      return r_.site(std::move(row));
    } else {
      (void)name;
      return {0, bytes, Pool::pageable};
    }
  }
  void register_gathers() {
    const Tape& tape = plan_.tape();
    constexpr std::uint8_t kStream = 1;  // __allgather_stream
    const auto row = [&](const std::string& unit, std::string_view name, Bytes bytes, Category category) {
      return site(unit, name, bytes, category, Holder::communication, kStream);
    };
    std::map<std::size_t, Gathered> leaves;
    for (const ZeroGathered& g : zero_.gathered) {
      const auto [known, fresh] = leaves.try_emplace(g.leaf);
      const std::string& name = tape.leaves[g.leaf].name;
      if (fresh) {
        known->second.whole = row(name, "gathered", g.whole, Category::weights);
        known->second.shard = row(name, "shard_from_host", g.shard, Category::communication);
        if (zero_.gathers_again) known->second.again = row(name, "gathered_beside_the_saved_one", g.whole, Category::weights);
      }
      parameter_sites_.push_back(known->second);
      parameter_sites_.back().at = Index(g.unit);
    }
    std::map<std::pair<Bytes, Bytes>, std::pair<SiteRef, SiteRef>> sizes;
    for (std::size_t i = 0; i < zero_.groups.size(); ++i) {
      const ZeroGroup& g = zero_.groups[i];
      const auto [known, fresh] = sizes.try_emplace({g.whole, g.shard});
      if (fresh) {
        const std::string name = "gathered_together." + std::to_string(sizes.size() - 1);
        known->second = {row(name, "buffer", g.whole, Category::communication),
                         row(name, "shards_from_host", g.shard, Category::communication)};
      }
      group_sites_.push_back({known->second.first, known->second.second, {}, Index(static_cast<std::int64_t>(i))});
    }
  }
  Gathered gathered(const ZeroAction& action) const {
    const bool group = action.kind == ZeroAction::Kind::gather_together || action.kind == ZeroAction::Kind::drop_together;
    const auto at = static_cast<std::size_t>(action.of);
    if constexpr (R::kWrites) {
      return group ? group_sites_[at] : parameter_sites_[at];
    } else {
      const Bytes whole = group ? zero_.groups[at].whole : zero_.gathered[at].whole;
      const Bytes shard = group ? zero_.groups[at].shard : zero_.gathered[at].shard;
      return {{0, whole, Pool::torch}, {0, shard, Pool::torch}, {0, whole, Pool::torch}, Index(0)};
    }
  }
  void act(Player<R>& player, const std::vector<ZeroAction>& actions) {
    for (const ZeroAction& action : actions) {
      if (action.kind == ZeroAction::Kind::reduce_waiting) {
        reduce_waiting(player);
        continue;
      }
      const Gathered g = gathered(action);
      const SiteRef buffer = action.again ? g.again : g.whole;
      if (buffer.bytes == 0) continue;
      switch (action.kind) {
        case ZeroAction::Kind::gather:
        case ZeroAction::Kind::gather_together:
          r_.alloc(buffer, g.at);
          r_.alloc(g.shard, g.at);
          r_.free(g.shard, g.at);
          break;
        case ZeroAction::Kind::copy_out:
          r_.alloc(buffer, g.at);
          break;
        case ZeroAction::Kind::drop_together:
        case ZeroAction::Kind::release:
        case ZeroAction::Kind::drop_saved:
          r_.free(buffer, g.at);
          break;
        case ZeroAction::Kind::reduce_waiting:
          break;
      }
    }
  }
  /// A full backward hook of the block, in front of its release: in the order of the model's parameters (stage3.py,
  /// create_reduce_and_remove_grad_hooks, 0.19.8).
  void reduce_waiting(Player<R>& player) {
    std::stable_sort(waiting_.begin(), waiting_.end(),
                     [](const Waiting& a, const Waiting& b) { return a.gradient->leaf < b.gradient->leaf; });
    for (const Waiting& one : waiting_) gradients_.take(player, *one.gradient, one.at, one.number, place_of_gradients());
    waiting_.clear();
  }

  static bool keeps_inputs_at(const Station& s) { return s.place == StationPlace::layers; }
  bool keeps_inputs(const Station& s) const { return zero_.checkpoint > 0 && keeps_inputs_at(s); }
  static std::int64_t checkpoints_before(const Tape& tape, std::size_t station) {
    std::int64_t n = 0;
    for (std::size_t s = 0; s < station; ++s)
      if (keeps_inputs_at(tape.stations[s])) n += tape.stations[s].count;
    return n;
  }

  /// Units of a station one by one. Only chunks of a head, which do nothing of ZeRO's, are repeated.
  template <class Body>
  void each_unit(Player<R>& player, std::size_t s, bool backward, Body&& body) {
    const std::int64_t n = player.tape().stations[s].count;
    if (n == 0) return player.each_unit(s, backward, [&](Unit u, Index at) { player.play(s, backward, u, at, micro_); });
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t at = backward ? n - 1 - i : i;
      body(at == 0 ? Unit::first : at == n - 1 ? Unit::last : Unit::inner, Index(at), at);
    }
  }

  /// A unit's events, with what the coordinator and the reduction do in between.
  void play(Player<R>& player, std::size_t s, bool backward, Unit unit, Index at, std::int64_t number) {
    const Segment& segment = player.tape().stations[s].segment(backward, unit);
    static const std::vector<ZeroStop> kNone;
    const ZeroPass& pass = backward ? zero_.backward : zero_.forward;
    const std::vector<ZeroStop>& stops = pass.empty() ? kNone : pass[s][static_cast<std::size_t>(number)];
    const bool reduces = backward && !zero_.buckets_at_end && (last_ || !zero_.reduces_last);
    const bool adds = backward && !first_ && (!reduces || zero_.reduces_last);
    const LeafGradients policy = adds ? LeafGradients::add : LeafGradients::keep;
    std::size_t from = 0, stop = 0, gradient = 0;
    const auto play_to = [&](std::size_t to) {
      if (to > from) player.play_events(segment, from, to, at, micro_, policy);
      from = to;
    };
    for (std::size_t i = 0; i < segment.events.size(); ++i) {
      if (stop < stops.size() && stops[stop].at == i) {
        play_to(i);
        act(player, stops[stop++].actions);
      }
      const bool cut = backward && (reduces || !gradients_.has_bucket());
      if (!cut || segment.events[i].kind != TapeEvent::Kind::gradient) continue;
      play_to(i + 1);
      gradients_.make_bucket();
      if (!reduces) continue;
      const LeftGradient& left = segment.gradients[gradient++];
      if (!zero_.waits.empty() && zero_.waits[static_cast<std::size_t>(left.leaf)])
        waiting_.push_back({&left, at, number});
      else
        gradients_.take(player, left, at, number, place_of_gradients());
    }
    play_to(segment.events.size());
    for (; stop < stops.size(); ++stop) act(player, stops[stop].actions);
  }
  /// Gradients that are added up lie where the first micro-batch put them.
  Index place_of_gradients() const { return zero_.stage == 1 ? Index(0) : micro_; }
  /// Stage 1: gradients of the whole model, in its order.
  void reduce_all(Player<R>& player) {
    const Tape& tape = player.tape();
    for (std::size_t s = 0; s < tape.stations.size(); ++s)
      if (tape.stations[s].count > 0)
        each_unit(player, s, false, [&](Unit u, Index at, std::int64_t number) {
          for (const LeftGradient& g : tape.stations[s].segment(true, u).gradients)
            gradients_.take(player, g, at, number, Index(0));
        });
  }
  void remember(Index now) {
    if constexpr (R::kWrites)
      micro_ = now;
    else
      (void)now;
  }

  R& r_;
  const TrainPlan& plan_;
  const ZeroPlan& zero_;
  ZeroGradients<R> gradients_;
  Index micro_;
  std::vector<Waiting> waiting_;  ///< for the end of their block
  SiteRef parameters_, persistent_, outside_, master_, states_, buffers_, at_load_, host_parameters_, host_master_, host_states_,
      host_gradients_, checkpoint_;
  std::vector<Gathered> parameter_sites_, group_sites_;  ///< only when a program is written
  bool outside_held_ = false, first_ = true, last_ = true;
};

}  // namespace oomplan
