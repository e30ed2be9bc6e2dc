// FSDP1 (FullyShardedDataParallel): one training step, and a forward-only pass, as memory programs.
//
// torch 2.13 (torch/distributed/fsdp: _runtime_utils.py, _flat_param.py), each checked by execution (docs/training.md):
//   forward   a unit's shard is cast, gathered straight into its flat parameter and the cast freed; the flat parameter goes
//             behind the unit, but for the root's, which stays.
//   backward  BACKWARD_PRE gathers the unit that comes next before this one computes. The gradients of a unit's parameters wait
//             for each other in front of the node that split the flat parameter; there they are concatenated into a flat
//             gradient, which is cast, padded and reduced. Nothing is kept for another unit.
//   forward_prefetch  splits the next unit's flat parameter before this unit computes, so that its gradients wait until this
//             one's backward pass is over too: autograd runs what was made last first.
#pragma once
#include <algorithm>
#include <optional>
#include <string_view>
#include <vector>

#include "training/flat_residents.hpp"
#include "training/host_checkpoints.hpp"
#include "training/root_adapters.hpp"

namespace oomplan {

template <class R>
class Fsdp1 : public FlatResidents<R> {
  using Base = FlatResidents<R>;
  using Base::adapter, Base::adapter_gradient, Base::adapter_unit, Base::cast_sum, Base::free_gradients, Base::plan_, Base::r_,
      Base::root, Base::sites, Base::size, Base::trained, Base::unsynchronised;
  using UnitSites = typename Base::UnitSites;

 public:
  /// `role` stands before the names of sites.
  Fsdp1(R& r, const TrainPlan& plan, std::string_view role)
      : Base(r, plan, role), micro_(Index(0)), checkpoints_(r, plan, role) {}

  /// Forward pass of one micro-batch; `player` plays the tape of the pass.
  void forward(Player<R>& player, Index micro) {
    remember(micro_, micro);
    const Tape& tape = player.tape();
    player.play(tape.station_at(StationPlace::inputs), false, Unit::first, Index(0), micro);
    root_held_ ? bring_again(root(), Index(0), false) : gather(root(), Index(0));
    if (prefetches_forward()) gather_first(tape, 0);
    for (std::size_t s = 1; s < tape.stations.size(); ++s) {
      const auto place = tape.stations[s].place;
      if (place == StationPlace::loss && !plan_.loss_inside) leave_root(&tape == plan_.log_probs);
      if (place == StationPlace::chunks || place == StationPlace::finish || place == StationPlace::loss) {
        player.play_all(s, false, micro);
        if (place == plan_.end_of_head && plan_.loss_inside) leave_root(&tape == plan_.log_probs);
        continue;
      }
      player.each_unit(s, false, [&](Unit u, Index at) { forward_unit(player, s, u, at); });
    }
    layers_held_ = !returned_after_forward();
  }

  /// Backward pass of one micro-batch. `first`: no gradients are there yet. `last`: gradients are reduced (always, unless
  /// synchronisation is deferred).
  void backward(Player<R>& player, Index micro, bool first, bool last) {
    remember(micro_, micro);
    first_ = first;
    last_ = last || plan_.sync_every;
    waiting_ = leaving_ = {};
    const Tape& tape = player.tape();
    for (std::size_t k = tape.stations.size(); k-- > 0;) {
      const auto place = tape.stations[k].place;
      if (place == StationPlace::inputs) continue;
      if (plan_.loss_inside && place == StationPlace::finish) {
        player.play_all(k, true, micro);
        enter_root(tape);
        continue;
      }
      if (!plan_.loss_inside && place == StationPlace::head) enter_root(tape);
      player.each_unit(k, true, [&](Unit u, Index at) { backward_unit(player, k, u, at); });
    }
    finish_backward(player);
    player.play(tape.station_at(StationPlace::inputs), true, Unit::first, Index(0), micro);
  }

 private:
  /// A unit whose gradients wait to be concatenated, or whose parameters to be freed.
  struct Waiting {
    std::optional<std::size_t> station;
    Unit unit = Unit::first;
    Index at;
  };

  /// An index that is needed later. A fold needs none.
  static void remember(Index& kept, Index now) {
    if constexpr (R::kWrites)
      kept = now;
    else
      (void)kept, (void)now;
  }

  /// Adapters of one unit that are units of their own: each is gathered around what its module computes, forward and when that is
  /// computed again, and from in front of its backward pass until its gradient is there, which is reduced at once; the hooks that
  /// gather a layer ahead gather them ahead (_runtime_utils.py _pre_backward_hook, _post_backward_hook).
  class AdapterUnits {
   public:
    AdapterUnits(Fsdp1& engine, const Tape& tape, std::size_t s, Unit u, Index at, bool backward) : engine_(engine), at_(at) {
      for (const TapeUse& use : tape.stations[s].segment(false, u).uses) {
        const int one = engine_.adapter(use.leaf);
        if (use.moment == UseMoment::begins && one >= 0 && !found(order_, one)) order_.push_back(one);
      }
      if (backward && ahead(BackwardPrefetch::pre) && !order_.empty()) gather(order_.back());
    }
    bool empty() const { return order_.empty(); }
    /// forward_prefetch takes units as they run: the layer gathers its first adapter ahead, each the one behind it, and the last
    /// one's `next` is the layer behind (_runtime_utils.py _pre_forward_unshard, _prefetch_handle).
    template <class Next>
    auto gathering_ahead(Next next) {
      gather(order_.front());
      return [this, next](const TapeUse& use, bool act) {
        if (!act || use.moment != UseMoment::begins || use.derives) return (*this)(use, act);
        const bool ours = (*this)(use, act);
        if (ours) gather_behind(engine_.adapter(use.leaf), next);
        return ours;
      };
    }
    bool operator()(const TapeUse& use, bool act) {
      if (use.moment != UseMoment::begins && use.moment != UseMoment::ends) return false;
      const int one = engine_.adapter(use.leaf);
      if (!found(order_, one)) return false;
      if (!act) return true;
      if (use.moment == UseMoment::begins) {
        gather(one);
        if (use.derives && ahead(BackwardPrefetch::pre)) gather_before(one);
      } else if (!use.derives) {
        reshard(one);
      } else if (engine_.adapters_wait()) {
        r().alloc(engine_.adapter_unit(one).fresh, at_);
        finish_waiting();
        waiting_ = one;
      } else {
        finish(one);
      }
      return true;
    }
    /// The gradient that waits to become a flat one.
    void finish_waiting() {
      if (!waiting_) return;
      finish(*waiting_);
      r().free(engine_.adapter_unit(*waiting_).fresh, at_);
      waiting_.reset();
    }
    void reshard_all() {
      while (!held_.empty()) reshard(held_.back());
    }
    bool reduced(int one) const { return found(reduced_, one); }

   private:
    static bool found(const std::vector<int>& numbers, int one) {
      return std::find(numbers.begin(), numbers.end(), one) != numbers.end();
    }
    bool ahead(BackwardPrefetch when) const { return engine_.prefetches(when) && !engine_.each_gathers_itself(); }
    /// What SHARD_GRAD_OP gathers stays: a sum for each layer. Without another format NO_SHARD gathers nothing.
    void gather(int one) {
      const UnitSites& unit = engine_.adapter_unit(one);
      if (found(held_, one) || size(unit.unsharded) == 0 || !engine_.returned_after_forward()) return;
      engine_.gather(unit, at_);
      held_.push_back(one);
    }
    void reshard(int one) {
      if (std::erase(held_, one) > 0) engine_.reshard(engine_.adapter_unit(one), at_);
    }
    R& r() const { return engine_.r_; }
    void finish(int one) {
      reshard(one);
      reduce(one);
      if (ahead(BackwardPrefetch::post)) gather_before(one);
    }
    void reduce(int one) {
      if (!engine_.makes_adapter_gradients() || reduced(one)) return;
      r().alloc(engine_.adapter_gradient(one), at_);
      reduced_.push_back(one);
    }
    /// The one whose module ran before.
    void gather_before(int one) {
      const auto here = std::find(order_.begin(), order_.end(), one);
      if (here != order_.begin()) gather(*(here - 1));
    }
    template <class Next>
    void gather_behind(int one, Next&& next) {
      const auto behind = std::find(order_.begin(), order_.end(), one) + 1;
      behind == order_.end() ? next() : gather(*behind);
    }

    Fsdp1& engine_;
    Index at_;
    std::vector<int> order_, held_, reduced_;  ///< as their modules run; those that are gathered; those whose gradient is there
    std::optional<int> waiting_;
  };

  // ---- which parameters are there

  bool alone() const { return plan_.ranks == 1; }  // NO_SHARD, which torch makes of every strategy on one rank
  /// NO_SHARD frees its cast with every reshard, SHARD_GRAD_OP keeps what it gathered until backward.
  bool returned_after_forward() const { return alone() || plan_.reshard_layers; }
  /// _should_free_in_backward
  bool returned_after_backward() const { return alone() || plan_.reshard_layers || last_; }
  bool prefetches_forward() const { return plan_.forward_prefetch && !layers_held_; }
  /// Autograd does not reach a frozen unit in front of all that is trained: none of its backward hooks runs.
  /// A pass without gradients has no backward events at all: the training tape says which units these are.
  bool idle(std::size_t s) const {
    return plan_.train != nullptr && plan_.wrapped[s] && plan_.train->stations[s].backward[0].events.empty();
  }
  /// Gathered by an earlier pass.
  bool holds(std::size_t s) const { return layers_held_ || (idle_held_ && idle(s)); }
  void gather(const UnitSites& u, Index at) {
    r_.alloc(u.low_precision, at);
    if (alone()) r_.alloc(u.unsharded, at);  // the cast is the parameter; the upload comes behind it
    r_.alloc(u.upload, at);
    const bool cast_from_it = size(u.low_precision) > 0 || alone();
    if (cast_from_it) r_.free(u.upload, at);
    if (!alone()) r_.alloc(u.unsharded, at);
    r_.free(u.low_precision, at);
    if (!cast_from_it && !views_hold_upload(u)) r_.free(u.upload, at);
  }
  /// With use_orig_params the parameters become views of the shard that came from the host, until those of the shard on the host
  /// take their place (_flat_param.py flat_param_to, _use_sharded_flat_param).
  bool views_hold_upload(const UnitSites& u) const {
    return plan_.use_orig_params && !alone() && size(u.upload) > 0 && size(u.low_precision) == 0;
  }
  void reshard(const UnitSites& u, Index at) {
    leave_views(u, at);
    r_.free(u.unsharded, at);
  }
  void leave_views(const UnitSites& u, Index at) {
    if (views_hold_upload(u)) r_.free(u.upload, at);
  }
  /// The views of a training forward pass stay behind it where parameters do (skip_use_sharded_views).
  bool skips_views() const { return !plan_.reshard_layers; }
  /// CPUOffload: what is gathered already is brought from the host all the same (pre_unshard). `viewed`: views hold it still, and
  /// take the new copy in its place.
  void bring_again(const UnitSites& u, Index at, bool viewed) {
    if (size(u.upload) == 0 || alone()) return;
    r_.alloc(u.low_precision, at);
    const auto& copy = viewed ? Base::upload_again(u) : u.upload;
    r_.alloc(copy, at);
    if (viewed || !views_hold_upload(u)) r_.free(copy, at);
    r_.free(u.low_precision, at);
  }

  // ---- forward

  void forward_unit(Player<R>& player, std::size_t s, Unit u, Index at) {
    const bool held = holds(s), hooked = plan_.wrapped[s] && !held;
    if (plan_.wrapped[s] && held) bring_again(sites(s), at, false);
    if (hooked && !plan_.forward_prefetch) gather(sites(s), at);
    const auto next = [&] {
      if (prefetches_forward()) gather_next(player.tape(), s, u, at);
    };
    const bool adapted = plan_.wrapped[s] && size(sites(s).adapter_gradients) > 0;
    if (!adapted) next();
    if (adapted) {
      AdapterUnits adapters(*this, player.tape(), s, u, at, false);
      play_adapted(player, s, u, at, adapters, next);
    } else if (has_root_adapters(player.tape(), s)) {
      play_root_adapters(player, s, false);
    } else {
      player.play(s, false, u, at, micro_);
    }
    checkpoints_.keep(player.tape(), s, at);
    if (!hooked) return;
    if (returned_after_forward())
      reshard(sites(s), at);
    else if (size(sites(s).adapter_unsharded) > 0)
      r_.alloc(sites(s).adapter_unsharded, at);  // each stayed as it was gathered
  }
  template <class Next>
  void play_adapted(Player<R>& player, std::size_t s, Unit u, Index at, AdapterUnits& adapters, Next next) {
    const auto play = [&](auto&& uses) {
      player.play_uses(s, false, u, at, micro_, std::nullopt, LeafGradients::keep, uses, [] {});
    };
    if (adapters.empty() || !prefetches_forward()) {
      next();
      play(adapters);
    } else {
      auto ahead = adapters.gathering_ahead(next);
      play(ahead);
    }
    adapters.reshard_all();
  }
  void gather_first(const Tape& tape, std::size_t from) {
    for (std::size_t k = from; k < tape.stations.size(); ++k)
      if (plan_.wrapped[k]) return gather_unless_held(k, Index(0));
  }
  void gather_next(const Tape& tape, std::size_t s, Unit u, Index at) {
    if (!plan_.wrapped[s]) return;
    if (u != Unit::last && tape.stations[s].count > 1) return gather_unless_held(s, at + 1);
    gather_first(tape, s + 1);
  }
  void gather_unless_held(std::size_t s, Index at) {
    if (!holds(s)) gather(sites(s), at);
  }
  /// The root's parameters stay for the backward pass. Behind a forward-only pass verl reshards them itself
  /// (verl/workers/fsdp_workers.py and engine/fsdp/transformer_impl.py: _handle.reshard(True)).
  void leave_root(bool forward_only) {
    root_held_ = !alone() && !(forward_only && plan_.reshard_root);
    if (!root_held_) return reshard(root(), Index(0));
    if (forward_only || !skips_views()) leave_views(root(), Index(0));
  }

  // ---- adapters of the root: what RootAdapters asks for

  template <class Engine, class Reduce>
  friend class RootAdapters;
  int adapter_of(int leaf) const { return adapter(leaf); }
  std::vector<int> root_adapters(const Tape& tape, std::size_t s) const {
    if (size(root().adapter_gradients) == 0 || plan_.wrapped[s]) return {};
    return adapters_as_run(tape, s, [this](int leaf) { return adapter(leaf); });
  }
  bool has_root_adapters(const Tape& tape, std::size_t s) const { return !root_adapters(tape, s).empty(); }
  bool gathers_ahead_in_front() const { return prefetches(BackwardPrefetch::pre) && !each_gathers_itself(); }
  void gather_root_adapter(int one) {
    if (std::find(root_held_adapters_.begin(), root_held_adapters_.end(), one) != root_held_adapters_.end()) return;
    gather(adapter_unit(one), Index(0));
    root_held_adapters_.push_back(one);
  }
  void leave_root_adapter(int one) {
    if (!returned_after_forward()) return;
    reshard(adapter_unit(one), Index(0));
    std::erase(root_held_adapters_, one);
  }
  void gather_in_front_of(const Tape& tape, std::size_t s) { gather_target(tape, s, Unit::first, Index(0)); }
  /// The pass of an unwrapped station whose module has some.
  void play_root_adapters(Player<R>& player, std::size_t s, bool backward) {
    const auto reduce_one = [&](int one, auto&& gather_before) {
      const int leaf = plan_.flat.adapters[static_cast<std::size_t>(one)].leaf;
      reduce(
          adapter_unit(one), Index(0), [&] { player.free_gradients(s, Unit::first, Index(0), micro_, Which::last, leaf); },
          [&] {
            if (prefetches(BackwardPrefetch::post) && !each_gathers_itself()) gather_before();
          });
      if (returned_after_backward()) std::erase(root_held_adapters_, one);
    };
    RootAdapters<Fsdp1, decltype(reduce_one)> units(*this, player.tape(), s, reduce_one);
    player.play_uses(s, backward, Unit::first, Index(0), micro_, std::nullopt, LeafGradients::keep, units, [] {});
  }

  // ---- backward

  /// The unit whose turn comes behind unit `at` of station s.
  void gather_target(const Tape& tape, std::size_t s, Unit u, Index at) {
    if (u != Unit::first) return regather(sites(s), at - 1);
    for (std::size_t k = s; k-- > 0;) {
      if (has_root_adapters(tape, k)) return gather_root_adapter(root_adapters(tape, k).back());
      if (!plan_.wrapped[k]) continue;
      if (!idle(k)) regather(sites(k), Index(tape.stations[k].count - 1));  // _needs_pre_backward_unshard
      return;
    }
  }
  void regather(const UnitSites& u, Index at) {
    returned_after_forward() ? gather(u, at) : bring_again(u, at, views_hold_upload(u));
  }
  bool prefetches(BackwardPrefetch when) const { return plan_.backward_prefetch == when; }
  /// Nothing waits while a reentrant checkpoint's own backward pass runs to its end, and a frozen layer has nothing that could.
  bool waits() const { return plan_.forward_prefetch && !plan_.reentrant && plan_.flat.adapters.empty(); }
  /// The split of an adapter's flat parameter that was gathered ahead is older than the products of the one before it, and of the
  /// layer's first one than the layer: its gradient waits until these are done.
  bool adapters_wait() const { return plan_.forward_prefetch && !plan_.reentrant; }
  /// A reentrant checkpoint around a unit ran it without a graph: no hook stands on its output, and nobody gathers it ahead of
  /// the pass that computes it again (_needs_pre_backward_unshard).
  bool each_gathers_itself() const { return plan_.units_in_checkpoints; }
  /// Whether somebody else gathers a unit: a later one before it computes, or behind it unless that one waits.
  bool gathered_by_another(const Tape& tape, std::size_t s, Unit u) const {
    if (each_gathers_itself()) return false;
    if (prefetches(BackwardPrefetch::pre)) return true;
    if (waits()) return false;
    // told to gather nothing ahead, a frozen unit does it all the same when it is through (_post_backward_reshard)
    const auto gathers_ahead = [this](std::size_t k) { return !prefetches(BackwardPrefetch::none) || !trained(sites(k)); };
    if (u == Unit::inner || (u == Unit::first && tape.stations[s].count > 1)) return gathers_ahead(s);
    for (std::size_t k = s + 1; k < tape.stations.size(); ++k) {
      if (plan_.wrapped[k]) return gathers_ahead(k);
      if (has_root_adapters(tape, k)) return !prefetches(BackwardPrefetch::none);
    }
    return false;
  }
  void enter_root(const Tape& tape) {
    alone() ? gather(root(), Index(0)) : bring_again(root(), Index(0), views_hold_upload(root()) && skips_views());
    if (prefetches(BackwardPrefetch::pre) && !each_gathers_itself())
      gather_target(tape, tape.stations.size(), Unit::first, Index(0));
  }
  void backward_unit(Player<R>& player, std::size_t s, Unit u, Index at) {
    checkpoints_.drop(player.tape(), s, at);
    const Tape& tape = player.tape();
    if (has_root_adapters(tape, s)) return play_root_adapters(player, s, true);
    if (!plan_.wrapped[s]) return player.play(s, true, u, at, micro_);
    if (idle(s)) return;
    if (!gathered_by_another(tape, s, u)) regather(sites(s), at);
    if (!trained(sites(s))) return backward_adapters(player, s, u, at);
    if (prefetches(BackwardPrefetch::pre) && !each_gathers_itself()) gather_target(tape, s, u, at);
    if (plan_.reentrant)  // the gradients are there when the nested backward pass is over; the checkpoint's frame still stands
      return player.play_cut(s, u, at, micro_, Cut::nested_end, LeafGradients::keep, [&] { reduce_unit(player, {s, u, at}); });
    player.play(s, true, u, at, micro_);
    if (!waits()) return reduce_unit(player, {s, u, at});
    // an inner unit of its own station, or one that is as it; of two layers the first follows the last
    const bool follows = u == Unit::inner || (u == Unit::first && tape.stations[s].count > 2);
    if (follows) {
      waiting_ = {s, Unit::inner, {}};
      remember(waiting_.at, at + 1);
    }
    reduce_waiting(player);
    waiting_ = {s, u, {}};
    remember(waiting_.at, at);
  }
  /// A frozen layer. Every adapter inside is a unit of its own, reduced as soon as its gradient is there; the one that computed
  /// first gathers the layer before. Without adapters the layer's own hook, on its output, does.
  void backward_adapters(Player<R>& player, std::size_t s, Unit u, Index at) {
    const Tape& tape = player.tape();
    const UnitSites& unit = sites(s);
    const bool ahead = !each_gathers_itself(), by_layer = gathers_by_its_hook(s);
    if (by_layer) gather_target(tape, s, u, at);
    release_later(tape, s, u, at);
    // BACKWARD_PRE's hook stands on that adapter's output, BACKWARD_POST's on its flat parameter's accumulation
    const bool post = prefetches(BackwardPrefetch::post), at_end = post && adapters_wait();
    const Cut first_adapter = post ? Cut::last_accumulated : Cut::last_gradient;
    AdapterUnits adapters(*this, tape, s, u, at, true);
    const auto behind_first = [&] {
      if (prefetches(BackwardPrefetch::post)) adapters.reshard_all();  // before it gathers another
      if (ahead && !by_layer && !prefetches(BackwardPrefetch::none)) gather_target(tape, s, u, at);
      if (size(unit.adapter_gradients) > 0) leave_adapters(unit, at);
    };
    if (at_end)
      player.play_uses(s, true, u, at, micro_, std::nullopt, LeafGradients::add, adapters, [] {});
    else
      player.play_uses(s, true, u, at, micro_, first_adapter, LeafGradients::add, adapters, behind_first);
    adapters.finish_waiting();
    if (at_end) behind_first();
    adapters.reshard_all();
    reduce_others(s, adapters, at);
    if (prefetches(BackwardPrefetch::none) && ahead) gather_target(tape, s, u, at);
    if (!left_by_another(s, u)) return release(unit, at);
    leaving_ = {s, u, {}};
    remember(leaving_.at, at);
  }
  bool gathers_by_its_hook(std::size_t s) const {
    const bool alone_in_it = !trained(sites(s)) && size(sites(s).adapter_gradients) == 0;
    return alone_in_it && prefetches(BackwardPrefetch::pre) && !each_gathers_itself();
  }
  /// The gradient of a layer's input is that of the output of the one before, whose hook comes first: it gathers, then this one's
  /// parameters are freed.
  bool left_by_another(std::size_t s, Unit u) const {
    if (u != Unit::first) return gathers_by_its_hook(s);
    while (s-- > 0)
      if (plan_.wrapped[s]) return !idle(s) && gathers_by_its_hook(s);
    return false;
  }
  /// The unit behind this one in the forward pass.
  void release_later(const Tape& tape, std::size_t s, Unit u, Index at) {
    if (!leaving_.station) return;
    const bool of_its_run = u == Unit::inner || (u == Unit::first && tape.stations[s].count > 2);
    if (of_its_run) remember(leaving_.at, at + 1);
    release(sites(*leaving_.station), leaving_.at);
    leaving_ = {};
  }
  void leave_adapters(const UnitSites& unit, Index at) {
    if (!returned_after_forward() && last_ && size(unit.adapter_unsharded) > 0) r_.free(unit.adapter_unsharded, at);
    if (first_ && !last_) r_.alloc(unit.adapter_fresh, at);
    if (!first_ && makes_adapter_gradients()) r_.free(unit.adapter_fresh, at);
  }
  /// The first gradients that are reduced; later ones are added to them.
  bool makes_adapter_gradients() const { return last_ && (first_ || !plan_.sync_every); }
  /// Of adapters whose modules run as one function, or not at all.
  void reduce_others(std::size_t s, const AdapterUnits& adapters, Index at) {
    if (!makes_adapter_gradients()) return;
    for (std::size_t i = 0; i < plan_.flat.adapters.size(); ++i) {
      const int one = static_cast<int>(i);
      if (plan_.flat.adapters[i].home == s && !adapters.reduced(one)) r_.alloc(adapter_gradient(one), at);
    }
  }
  void release(const UnitSites& unit, Index at) { returned_after_backward() ? reshard(unit, at) : leave_views(unit, at); }

  void reduce_waiting(Player<R>& player) {
    if (!waiting_.station) return;
    const Waiting w = waiting_;
    waiting_ = {};
    reduce_unit(player, w);
  }
  void reduce_unit(Player<R>& player, const Waiting& w) {
    const std::size_t s = *w.station;
    reduce(
        sites(s), w.at, [&] { player.free_gradients(s, w.unit, w.at, micro_); },
        [&] {
          if (prefetches(BackwardPrefetch::post) && !waits() && !each_gathers_itself())
            gather_target(player.tape(), s, w.unit, w.at);
        });
  }
  /// The flat gradient is made and _post_backward_hook runs: what it makes goes when it returns.
  template <class FreeSingles, class Prefetch>
  void reduce(const UnitSites& unit, Index at, FreeSingles&& free_singles, Prefetch&& prefetch) {
    const bool deferred = !plan_.sync_every && !(first_ && last_);
    const bool keeps = deferred && first_;  // it becomes the flat gradient that later micro-batches add to
    const auto& summed = deferred ? unsynchronised(unit) : unit.fresh;
    r_.alloc(unit.zeros, at);  // the backward pass of torch.split: what has no gradient gets zeros
    r_.alloc(keeps ? summed : unit.fresh, at);
    r_.free(unit.zeros, at);
    free_singles();
    release(unit, at);
    prefetch();
    if (last_ && is_the_gradient(unit)) {
      r_.free(summed, at);
      r_.alloc(unit.gradient, at);
      if (deferred) r_.free(unit.fresh, at);
      return;
    }
    if (last_) shard_gradient(unit, at);
    if (!keeps) r_.free(unit.fresh, at);
    if (last_ && deferred) r_.free(summed, at);
  }
  /// Sharded gradients of earlier micro-batches are there.
  bool exists() const { return plan_.sync_every && !first_; }
  /// NO_SHARD without a cast: the same memory under another name.
  bool is_the_gradient(const UnitSites& unit) const {
    return alone() && !exists() && !Base::casts(unit) && size(unit.reduced) == 0;
  }
  void shard_gradient(const UnitSites& unit, Index at) {
    if (alone() && exists()) {  // the new one was added to it; the sum is reduced
      r_.alloc(unit.output, at);
      if (Base::casts(unit)) r_.alloc(cast_sum(unit), at);
      if (Base::casts(unit)) r_.free(cast_sum(unit), at);
      return r_.free(unit.output, at);
    }
    r_.alloc(unit.reduced, at);
    if (!alone()) {
      r_.alloc(unit.padded, at);
      r_.alloc(unit.output, at);
    }
    // cast to the format of the parameters; without one the output itself becomes the gradient, or is added to it
    if (Base::casts(unit)) r_.alloc(exists() ? cast_sum(unit) : unit.gradient, at);
    if (!alone()) {
      r_.free(unit.output, at);
      r_.free(unit.padded, at);
    }
    r_.free(unit.reduced, at);
    if (Base::casts(unit) && exists()) r_.free(cast_sum(unit), at);
    if (!Base::casts(unit) && !exists()) r_.alloc(unit.gradient, at);
  }
  /// A tower's blocks are many, and each has its own.
  void free_gradients_of_root(Player<R>& player, std::size_t s) {
    if (plan_.wrapped[s]) return;
    if (player.tape().stations[s].place != StationPlace::tower) return player.free_gradients(s, Unit::first, Index(0), micro_);
    player.each_unit(s, true, [&](Unit u, Index at) { player.free_gradients(s, u, at, micro_); });
  }
  void finish_backward(Player<R>& player) {
    reduce_waiting(player);
    if (trained(root())) {
      reduce(
          root(), Index(0),
          [&] {
            for (std::size_t s = 0; s < player.tape().stations.size(); ++s) free_gradients_of_root(player, s);
          },
          [] {});
    } else {
      release(root(), Index(0));
    }
    leave_idle(player);
    root_held_ = !returned_after_backward();
    layers_held_ = !returned_after_backward();
    // CPUOffload: gradients are copied to the host unit by unit, but prepare_gradient_for_optim alone lets go of them
    if (plan_.cpu_offload && last_) free_gradients();
  }

  /// The final callback reshards what stayed gathered behind its forward pass, but takes a unit for resharded whose flat
  /// parameter is the shard, as it is wherever views were not skipped: that one stays gathered (_catch_all_reshard).
  void leave_idle(Player<R>& player) {
    if (returned_after_forward() || idle_held_) return;
    const Tape& tape = player.tape();
    const bool skipped = plan_.use_orig_params && skips_views();
    for (std::size_t s = 0; s < tape.stations.size(); ++s)
      if (skipped && idle(s)) player.each_unit(s, true, [&](Unit, Index at) { release(sites(s), at); });
    idle_held_ = !skipped;
  }

  Index micro_;
  HostCheckpoints<R> checkpoints_;
  Waiting waiting_;  ///< under forward_prefetch: the unit before, in backward order
  Waiting leaving_;  ///< the unit before, in backward order, where it is freed behind the next one's hook
  bool first_ = true, last_ = true;
  std::vector<int> root_held_adapters_;                               ///< the root's adapters that are gathered
  bool root_held_ = false, layers_held_ = false, idle_held_ = false;  ///< gathered by an earlier pass
};

}  // namespace oomplan
