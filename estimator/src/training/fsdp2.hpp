// FSDP2 (fully_shard), one unsharded device and DDP: one training step, and a forward-only pass, as memory programs.
//
// The order of gathers, frees and reductions is that of torch 2.13 (torch/distributed/fsdp/_fully_shard: _fsdp_param_group.py,
// _fsdp_collectives.py, _fsdp_state.py), each checked by execution (docs/training.md):
//   forward   unshard(j): cast of the shard, all-gather output, copy-out into the unsharded parameters; the previous unit's
//             all-gather output is held by a local variable until the copy-out is over. Resharded behind the unit.
//   backward  the gather of the unit before (in backward order: the next one) is prefetched when a unit starts; behind it the
//             parameters are freed, the previous reduce-scatter input is dropped, gradients are copied into this unit's one.
//   root      holds what no unit holds; reduced last. A wrapped embedding is reduced behind it, by the final callback.
#pragma once
#include <algorithm>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "training/ddp_buckets.hpp"
#include "training/host_checkpoints.hpp"
#include "training/plan.hpp"
#include "training/player.hpp"
#include "training/shard_sites.hpp"

namespace oomplan {

template <class R>
class Fsdp2 : ShardSites<R> {
  using Base = ShardSites<R>;
  using Base::site, Base::host_site, Base::prefix, Base::sites, Base::root, Base::gradient, Base::reduced, Base::casts,
      Base::scales, Base::trained;
  using UnitSites = typename Base::UnitSites;

 public:
  /// `role` stands before the names of sites.
  Fsdp2(R& r, const TrainPlan& plan, std::string_view role)
      : Base(r, plan, role), r_(r), plan_(plan), micro_(Index(0)), buckets_(r, plan, role), checkpoints_(r, plan, role) {
    parameters_ = site("", "parameters", plan.resident, Category::weights, Holder::resident);
    optimizer_ = site("", "optimizer.states", plan.optimizer + plan.optimizer_steps, Category::optimizer, Holder::resident);
    host_parameters_ = host_site("", "parameters on the host", plan.resident);
    host_optimizer_ = host_site("", "optimizer states on the host", plan.optimizer);
    managed_ = host_site("", "optimizer states in unified memory", plan.optimizer_managed);
    buffers_ = site("", "buffers", plan.buffers, Category::buffers, Holder::resident);
    steps_ = site("", "optimizer.steps", plan.optimizer_steps, Category::optimizer, Holder::resident);
    embedding_part_ = site("embedding", "gradient_part", plan.embedding_part, Category::gradients, Holder::local);
    transient_ = site("", "optimizer.temporaries", plan.step_transient, Category::temporaries, Holder::local);
  }

  /// Parameters and buffers of this rank. Leaves them on the device, or on the host under CPUOffloadPolicy.
  void load() {
    plan_.cpu_offload ? r_.alloc(host_parameters_) : place_parameters();
    r_.alloc(buffers_);
    buckets_.make();
  }
  /// DDP, before a micro-batch's forward pass. `gradients`: there are some of earlier micro-batches.
  void rebuild_buckets(bool gradients) { buckets_.rebuild(gradients); }
  void place_parameters() {
    each_leaf([&](const SiteRef& s, Index i) { r_.alloc(s, i); });
  }
  void take_parameters() {
    each_leaf([&](const SiteRef& s, Index i) { r_.free(s, i); });
  }
  /// Between phases: parameters or states go to (pinned) host memory and come back. There is no transient on the device.
  void offload_parameters() {
    if (held_ && plan_.sharded && !plan_.reshard_root && plan_.reshard_layers) {  // FSDPModule._apply
      reshard(root(), Index(0));
      held_ = false;
    }
    r_.alloc(host_parameters_);
    take_parameters();
  }
  void reload_parameters() {
    place_parameters();
    r_.free(host_parameters_);
  }
  /// Optimizer states: made in the first step, lazily; where the step runs.
  void make_states() {
    if (plan_.cpu_offload) return r_.alloc(host_optimizer_);
    each_state([&](const SiteRef& s, Index i) { r_.alloc(s, i); });
    if (plan_.optimizer_managed > 0) r_.alloc(managed_);
  }
  void offload_states() {
    r_.alloc(host_optimizer_);
    each_state([&](const SiteRef& s, Index i) { r_.free(s, i); });
  }
  void reload_states() {
    each_state([&](const SiteRef& s, Index i) { r_.alloc(s, i); });
    r_.free(host_optimizer_);
  }

  /// Forward pass of one micro-batch; `player` plays the tape of the pass.
  void forward(Player<R>& player, Index micro) {
    remember(micro_, micro);
    const Tape& tape = player.tape();
    const std::size_t n = tape.stations.size();
    player.play(tape.station_at(StationPlace::inputs), false, Unit::first, Index(0), micro);
    before_ = nullptr;
    if (plan_.sharded && !stays(plan_.reshard_root)) unshard_forward(root(), Index(0));
    for (std::size_t s = 1; s < n; ++s) {
      const auto place = tape.stations[s].place;
      if (place == StationPlace::loss && !plan_.loss_inside) leave_root();
      if (place == StationPlace::chunks || place == StationPlace::finish || place == StationPlace::loss) {
        player.play_all(s, false, micro);
        if (plan_.loss_inside && place == plan_.end_of_head) leave_root();
        continue;
      }
      if (!tape.stations[s].called) continue;
      player.each_unit(s, false, [&](Unit u, Index at) { forward_unit(player, s, u, at); });
    }
    held_ = true;
  }

  /// Backward pass of one micro-batch. `first`: no gradients are there yet. `last`: gradients are reduced (always, unless
  /// synchronisation is deferred). `inputs_stay`: someone holds the graph's leaves until drop_inputs().
  void backward(Player<R>& player, Index micro, bool first, bool last, bool inputs_stay = false) {
    remember(micro_, micro);
    first_ = first;
    last_ = last || plan_.sync_every;
    reducing_ = nullptr;
    const Tape& tape = player.tape();
    const LeafGradients policy = leaf_gradients();
    for (std::size_t k = tape.stations.size(); k-- > 0;) {
      const auto place = tape.stations[k].place;
      if (place == StationPlace::inputs || !tape.stations[k].called) continue;
      if (plan_.sharded && plan_.loss_inside && place == StationPlace::finish) {
        player.play_all(k, true, micro, policy);
        enter_root(tape);
        continue;
      }
      if (plan_.sharded && !plan_.loss_inside && place == StationPlace::head) enter_root(tape);
      player.each_unit(k, true, [&](Unit u, Index at) { backward_unit(player, k, u, at, policy); });
    }
    if (plan_.sharded) finish_backward(player);
    held_ = false;
    if (!inputs_stay) drop_inputs(player, micro);
  }
  void drop_inputs(Player<R>& player, Index micro) {
    player.play(player.tape().station_at(StationPlace::inputs), true, Unit::first, Index(0), micro);
  }

  /// What the norms for clipping take, or what the step of the optimizer's form holds.
  void optimizer_step() {
    if (plan_.cpu_offload) return;  // the step runs on the host
    each_transient([&](const SiteRef& s, Index i) { r_.alloc(s, i); });
    each_transient([&](const SiteRef& s, Index i) { r_.free(s, i); });
  }

  /// zero_grad(set_to_none=True).
  void drop_gradients(Player<R>& player) {
    const Tape& tape = player.tape();
    if (plan_.bucket_views) return;  // they lie in the buckets, which stay
    if (!plan_.sharded) {
      const Index made_by = plan_.step_every ? micro_ : Index(0);  // later micro-batches add to those of the first
      for (std::size_t s = tape.stations.size(); s-- > 0;)
        player.each_unit(s, true, [&](Unit u, Index at) { player.free_gradients(s, u, at, made_by); });
      return;
    }
    for (std::size_t s = 0; s < tape.stations.size(); ++s)
      if (plan_.wrapped[s] && trained(sites(s)) && !joins_head(tape, s))
        player.each_unit(s, false, [&](Unit, Index at) { r_.free(gradient(sites(s)), at); });
    if (trained(root())) r_.free(gradient(root()));
  }

 private:
  /// Parameters one by one when a program is written, as one sum when it is folded.
  template <class Do>
  void each_leaf(Do&& act) {
    if constexpr (!R::kWrites) {
      act(parameters_, Index(0));
    } else {
      const Tape& tape = plan_.tape();
      if (parameter_sites_.empty())
        for (std::size_t i = 0; i < tape.leaves.size(); ++i)
          parameter_sites_.push_back(leaf_site(tape.leaves[i], plan_.storage[i]));
      for (std::size_t station = 0; station < tape.stations.size(); ++station) {
        const std::int64_t units = tape.stations[station].count;
        r_.repeat(units, [&](Index at) { each_leaf_of(tape, station, units, at, act); });
      }
    }
  }
  /// The leaves of one unit as modules register them: those of one layer lie beside each other.
  template <class Do>
  void each_leaf_of(const Tape& tape, std::size_t station, std::int64_t units, Index at, Do&& act) {
    for (std::size_t i = 0; i < tape.leaves.size(); ++i) {
      const TapeLeaf& leaf = tape.leaves[i];
      if (leaf.station != station || leaf.shared) continue;
      act(parameter_sites_[i], at);
      for (std::int64_t copy = 1; (leaf.trainable || leaf.unreached) && copy <= plan_.frozen_copies; ++copy)
        act(parameter_sites_[i], at + copy * units);
    }
  }
  /// One tensor of states for each trained one and kind, in the optimizer's order: they fill what the passes have left free in
  /// the allocator, which one tensor of them all would not (73 steps on an H200, tests/data/measured_h200.jsonl).
  template <class Do>
  void each_state(Do&& act) {
    if constexpr (R::kWrites) {
      if (plan_.states_by_tensor) {
        each_trained("optimizer.states", state_sites_, plan_.state_bytes_of, Category::optimizer, Holder::resident, act);
        return act(steps_, Index(0));
      }
    }
    act(optimizer_, Index(0));
  }
  /// foreach's list of square roots, a tensor each.
  template <class Do>
  void each_transient(Do&& act) {
    if constexpr (R::kWrites) {
      if (plan_.states_by_tensor && plan_.step_transient == plan_.gradients)
        return each_trained("optimizer.square_roots", transient_sites_, 1, Category::temporaries, Holder::local, act);
    }
    act(transient_, Index(0));
  }
  template <class Do>
  void each_trained(std::string_view what, std::vector<SiteRef>& known, std::int64_t each, Category category, Holder holder,
                    Do&& act) {
    const Tape& tape = plan_.tape();
    if (known.empty())
      for (std::size_t i = 0; i < tape.leaves.size(); ++i)
        known.push_back(site("", what, plan_.shard_bytes[i], category, holder));
    for (std::size_t station = 0; station < tape.stations.size(); ++station) {
      const std::int64_t units = tape.stations[station].count;
      r_.repeat(units, [&](Index at) {
        for (std::size_t i = 0; i < tape.leaves.size(); ++i) {
          const TapeLeaf& leaf = tape.leaves[i];
          if (leaf.station != station || !leaf.trainable || leaf.shared) continue;
          for (std::int64_t n = 0; n < each; ++n) act(known[i], at + n * units);
        }
      });
    }
  }
  SiteRef leaf_site(const TapeLeaf& leaf, DType storage) {
    Site row;
    row.name = prefix() + leaf.name;
    row.shape = leaf.shape;
    if (!row.shape.empty() && plan_.sharded) row.shape[0] = rows_of_shard(leaf, plan_.ranks, plan_.base_whole);
    std::int64_t n = 1;
    for (const auto d : row.shape) n *= d;
    row.dtype = storage;
    row.bytes = bytes_of(n, storage);
    row.category = Category::weights;
    row.holder = Holder::resident;
    if constexpr (R::kWrites)
      return r_.site(std::move(row));
    else
      return {0, row.bytes, Pool::torch};
  }

  // ---- forward

  /// An index that is needed later. A fold needs none.
  static void remember(Index& kept, Index now) {
    if constexpr (R::kWrites)
      kept = now;
    else
      (void)kept, (void)now;
  }
  /// What is not resharded stays unsharded from a forward-only pass to the next pass, which gathers nothing
  /// (_fsdp_param_group.py: unshard returns when the group is unsharded).
  bool stays(bool resharded) const { return held_ && !resharded; }
  /// `kept`: from the slices that stayed behind the forward pass, which are in the compute dtype.
  void gather(const UnitSites& u, Index at, bool kept) {
    if (kept) return r_.alloc(u.gathered, at);
    if (plan_.cpu_offload) r_.alloc(u.upload, at);
    if (scales(u)) r_.alloc(u.scaled, at), r_.free(u.scaled, at);
    r_.alloc(u.cast, at);
    if (plan_.cpu_offload && casts(u)) r_.free(u.upload, at);
    r_.alloc(u.gathered, at);
    r_.free(u.cast, at);
    if (plan_.cpu_offload && !casts(u)) r_.free(u.upload, at);
  }
  void copy_out(const UnitSites& u, Index at, bool kept) {
    r_.alloc(u.unsharded, at);
    if (!kept) return;
    r_.free(u.kept_ahead, at);
    r_.free(u.kept_rest, at);
  }
  void reshard(const UnitSites& u, Index at) {
    if (keeps()) r_.alloc(u.kept_ahead, at);
    r_.free(u.unsharded, at);
    if (keeps()) r_.alloc(u.kept_rest, at);
  }
  /// _fsdp_param.py: to_sharded_post_forward.
  bool keeps() const { return plan_.reshard_ranks > 0; }
  void unshard_forward(const UnitSites& u, Index at, bool gathered = false) {
    const bool kept = held_ && keeps();
    if (!gathered) gather(u, at, kept);
    copy_out(u, at, kept);
    if (before_ != nullptr) r_.free(before_->gathered, before_at_);
    before_ = &u;
    remember(before_at_, at);
  }
  void forward_unit(Player<R>& player, std::size_t s, Unit u, Index at) {
    const std::size_t owner = owner_of(player.tape(), s);
    const bool again = resharded(player.tape(), owner, u);
    const bool hooked = plan_.sharded && plan_.wrapped[owner] && !stays(again);
    const bool follows = (u == Unit::inner || u == Unit::last) && plan_.sharded && plan_.wrapped[owner];
    if (follows && !stays(resharded(player.tape(), owner, Unit::inner))) {  // the unit before was gathered
      before_ = &sites(owner);
      remember(before_at_, at - 1);
    }
    if (hooked && opens(player.tape(), s)) {
      const bool chained = plan_.forward_prefetch && player.tape().stations[s].place == StationPlace::layers;
      unshard_forward(sites(owner), at, chained && (u == Unit::inner || u == Unit::last || follows_layers(player.tape(), s)));
      if (chained) prefetch_forward(player.tape(), s, u, at);
    }
    player.play(s, false, u, at, micro_);
    checkpoints_.keep(player.tape(), s, at);
    if (hooked && closes(player.tape(), s) && again) reshard(sites(owner), at);
  }
  /// The station whose unit has the parameters of station s.
  std::size_t owner_of(const Tape& tape, std::size_t s) const {
    return plan_.norm_with_head && tape.stations[s].place == StationPlace::norm ? tape.station_at(StationPlace::head) : s;
  }
  /// A unit of norm and output layer begins with the one and ends with the other.
  bool opens(const Tape& tape, std::size_t s) const {
    return !plan_.norm_with_head || tape.stations[s].place != StationPlace::head;
  }
  bool closes(const Tape& tape, std::size_t s) const {
    return !plan_.norm_with_head || tape.stations[s].place != StationPlace::norm;
  }
  /// Freed behind the forward pass. torchtitan leaves gathered what is last: the output layer's unit, or else the last layer.
  bool resharded(const Tape& tape, std::size_t s, Unit u) const {
    if (plan_.reshard_last || !plan_.reshard_layers) return plan_.reshard_layers;
    const Station& at = tape.stations[s];
    if (at.place == StationPlace::head) return false;
    const bool last_run = s + 1 < tape.stations.size() && tape.stations[s + 1].place == StationPlace::norm;
    return !last_run || (u != Unit::last && at.count > 1) || plan_.wrapped[tape.station_at(StationPlace::head)];
  }
  static bool follows_layers(const Tape& tape, std::size_t s) {
    for (std::size_t k = 0; k < s; ++k)
      if (tape.stations[k].place == StationPlace::layers && tape.stations[k].called) return true;
    return false;
  }
  /// set_modules_to_forward_prefetch of every layer with the next one: its gather begins before this one computes.
  void prefetch_forward(const Tape& tape, std::size_t s, Unit u, Index at) {
    const bool kept = held_ && keeps();
    if (u != Unit::last && tape.stations[s].count > 1) return gather(sites(s), at + 1, kept);
    for (std::size_t k = s + 1; k < tape.stations.size(); ++k)
      if (tape.stations[k].place == StationPlace::layers) return gather(sites(k), Index(0), kept);
  }
  void leave_root() {
    if (!plan_.sharded) return;
    if (before_ != nullptr) r_.free(before_->gathered, before_at_);
    before_ = nullptr;
    if (plan_.reshard_root) reshard(root(), Index(0));
  }

  // ---- backward

  /// DDP copies a gradient into its bucket as soon as it is there; with views nothing else of it is left. Those of earlier
  /// micro-batches that were not reduced are tensors of their own until then.
  LeafGradients leaf_gradients() const {
    if (plan_.sharded) return adds_in_place() && !first_ ? LeafGradients::add : LeafGradients::keep;
    if (!plan_.bucket_views) return first_ ? LeafGradients::keep : LeafGradients::add;
    if (plan_.sync_every || (first_ && last_)) return LeafGradients::add;
    return first_ ? LeafGradients::keep : last_ ? LeafGradients::move : LeafGradients::add;
  }
  /// Gradients that wait for a later micro-batch stay what they are (_fsdp_param.py, to_accumulated_grad_if_needed), and autograd
  /// adds the later ones into them.
  bool adds_in_place() const { return !plan_.sync_every && !plan_.casts_accumulated && plan_.embedding_part == 0; }
  /// The unit that ran before station s in forward order (what its backward prefetches), if any, and if it was resharded.
  const UnitSites* earlier(const Tape& tape, std::size_t s, Index& at) const {
    for (std::size_t k = s; k-- > 0;) {
      if (!plan_.wrapped[k] || !tape.stations[k].called) continue;
      at = Index(tape.stations[k].count - 1);
      return resharded(tape, k, Unit::last) ? &sites(k) : nullptr;
    }
    return nullptr;
  }
  /// The module's input needs no gradient: ids or pixels come in, or nothing in front of an output layer is trained.
  static bool begins(const Tape& tape, std::size_t s) {
    const StationPlace place = tape.stations[s].place;
    if (place == StationPlace::head) return begins_at_head(tape, s);
    return place == StationPlace::embedding || in_front_of_blocks(place);
  }
  static bool in_front_of_blocks(StationPlace place) { return place == StationPlace::vision || place == StationPlace::positions; }
  static bool begins_at_head(const Tape& tape, std::size_t head) {
    return std::all_of(tape.stations.begin(), tape.stations.begin() + static_cast<std::ptrdiff_t>(head),
                       [](const Station& s) { return s.place == StationPlace::inputs || s.backward[0].events.empty(); });
  }
  /// Frozen units in front of all that is trained: autograd does not reach them, so their backward hooks never run.
  bool idle(const Tape& tape, std::size_t s) const {
    const StationPlace place = tape.stations[s].place;
    if (place == StationPlace::embedding && plan_.embedding_collects) return false;
    return plan_.wrapped[s] && place != StationPlace::head && tape.stations[s].backward[0].events.empty();
  }
  /// Gathers ahead of the backward pass. For an idle unit nothing waits; what was gathered stays until the final callback
  /// (_fsdp_param_group.py, finalize_backward: "a mistargeted unshard").
  void gather_ahead(const Tape& tape, const UnitSites& target, Index at) {
    gather(target, at, keeps());
    for (std::size_t k = 0; k < tape.stations.size(); ++k)
      if (idle(tape, k) && &target == &sites(k)) {
        stray_ = &target;
        remember(stray_at_, at);
      }
  }
  /// The unit behind this one in the forward pass was idle: it has gathered nothing ahead.
  bool left_alone(const Tape& tape, std::size_t s) const {
    for (std::size_t k = s + 1; k < tape.stations.size(); ++k)
      if (plan_.wrapped[k] && tape.stations[k].called) return idle(tape, k);
    return false;
  }
  /// What the final callback drops of units whose backward pass did not run.
  void drop_idle(Player<R>& player) {
    if (stray_ != nullptr) r_.free(stray_->gathered, stray_at_);
    stray_ = nullptr;
    const Tape& tape = player.tape();
    for (std::size_t k = 0; k < tape.stations.size(); ++k)
      if (idle(tape, k) && tape.stations[k].called && !plan_.reshard_layers)
        player.each_unit(k, true, [&](Unit, Index at) { r_.free(sites(k).unsharded, at); });
  }
  void enter_root(const Tape& tape) {
    // hooks of one tensor run in the order of their registration: the output layer's unit begins in front of the root
    const std::size_t head = tape.station_at(StationPlace::head);
    head_first_ = plan_.reshard_root && plan_.root_returns_head && !plan_.loss_inside && plan_.wrapped[head] &&
                  resharded(tape, head, Unit::first);
    if (head_first_) begin_backward(tape, head, Unit::first, Index(0), true);
    if (plan_.reshard_root) {
      gather(root(), Index(0), keeps());
      copy_out(root(), Index(0), keeps());
      r_.free(root().gathered);
    }
    Index at(0);
    const UnitSites* target = plan_.reshard_layers && !head_first_ ? earlier(tape, tape.stations.size(), at) : nullptr;
    if (target != nullptr) gather_ahead(tape, *target, at);
  }
  void backward_unit(Player<R>& player, std::size_t s, Unit u, Index at, LeafGradients policy) {
    const Tape& tape = player.tape();
    checkpoints_.drop(tape, s, at);
    const std::size_t owner = owner_of(tape, s);
    if (!plan_.sharded || !plan_.wrapped[owner]) return player.play(s, true, u, at, micro_, policy);
    const UnitSites& unit = sites(owner);
    if (idle(tape, s)) return;
    const bool begun = head_first_ && tape.stations[s].place == StationPlace::head;
    if (plan_.reshard_layers && closes(tape, s) && !begun)  // in backward the last station comes first
      begin_backward(tape, s, u, at, u == Unit::first && left_alone(tape, owner));
    player.play(s, true, u, at, micro_, policy);
    // A module whose input needs no gradient is reduced by the root's final callback.
    if (begins(tape, s) || !opens(tape, s)) return;
    if (last_ && trained(unit) && u != Unit::last && tape.stations[s].count > 1) {
      reducing_ = &unit;
      remember(reducing_at_, at + 1);
    }
    reduce(unit, at, [&](Which which) {
      player.free_gradients(s, u, at, micro_, which, plan_.last_leaf[owner]);
      if (owner != s) player.free_gradients(owner, u, at, micro_, which, plan_.last_leaf[owner]);
    });
  }

  /// pre_backward of one unit: it is gathered, unless that was done ahead, and so is the one in front of it.
  void begin_backward(const Tape& tape, std::size_t s, Unit u, Index at, bool gathers) {
    const std::size_t owner = owner_of(tape, s);
    const UnitSites& unit = sites(owner);
    if (resharded(tape, owner, u)) {
      if (gathers) gather(unit, at, keeps());
      copy_out(unit, at, keeps());
      r_.free(unit.gathered, at);
    }
    Index before(0);
    const UnitSites* target = &unit;
    if (u == Unit::first)
      target = earlier(tape, s, before);
    else
      before = at - 1;
    if (target != nullptr) gather_ahead(tape, *target, before);
  }

  /// post_backward of one unit. free_fresh(Which) drops this micro-batch's gradients. The last parameter's gradient is held by
  /// a loop variable until the function returns.
  template <class FreeFresh>
  void reduce(const UnitSites& unit, Index at, FreeFresh&& free_fresh) {
    if (!trained(unit)) return r_.free(unit.unsharded, at);
    if (!plan_.sync_every) accumulate(unit, at, free_fresh);
    r_.free(unit.unsharded, at);
    if (!last_) return;
    if (reducing_ != nullptr) r_.free(reducing_->reduce_input, reducing_at_);
    r_.alloc(unit.reduce_input, at);
    if (plan_.sync_every)
      free_fresh(Which::all_but_last);
    else
      r_.free(unit.accumulated, at);
    r_.alloc(unit.reduce_output, at);
    shard_gradient(unit, at);
    if (plan_.sync_every) free_fresh(Which::last);
    reducing_ = &unit;
    remember(reducing_at_, at);
  }
  template <class FreeFresh>
  void accumulate(const UnitSites& unit, Index at, FreeFresh& free_fresh) {
    const bool in_place = adds_in_place();
    if (in_place && !first_) return;
    free_fresh(Which::all_but_last);
    if (in_place) free_fresh(Which::last);  // the same memory under another name
    if (first_) r_.alloc(unit.accumulated, at);
    if (!in_place) free_fresh(Which::last);  // unsharded gradients are cast to the reduce dtype and added up
  }
  /// foreach_reduce: the output is cast to the format of what is stored; then it is the gradient (a view of it: the same memory
  /// under another name), is added into the one of earlier micro-batches, or goes to the host. Under HSDP the unit holds what it
  /// summed over the groups until the root's final callback has come to it (AllReduceState).
  void shard_gradient(const UnitSites& unit, Index at) {
    const bool exists = (plan_.sync_every && !first_) || joins_;
    const bool passes = exists || plan_.cpu_offload;
    if (Base::casts_reduced(unit)) {
      r_.alloc(passes ? reduced(unit) : gradient(unit), at);
      if (!plan_.replicates) r_.free(unit.reduce_output, at);
    }
    if (plan_.cpu_offload && !exists) r_.alloc(gradient(unit), at);
    if (passes && Base::casts_reduced(unit)) r_.free(reduced(unit), at);
    if (Base::casts_reduced(unit)) return;
    if (!passes || !plan_.replicates) r_.free(unit.reduce_output, at);
    if (!passes) r_.alloc(gradient(unit), at);
  }
  /// finalize_backward.
  void drop_summed(const UnitSites& unit, Index at) {
    const bool apart = Base::casts_reduced(unit) || plan_.cpu_offload || (plan_.sync_every && !first_) || joins_;
    if (plan_.replicates && last_ && apart && trained(unit)) r_.free(unit.reduce_output, at);
  }
  void drop_all_summed(Player<R>& player) {
    const Tape& tape = player.tape();
    for (std::size_t s = 0; plan_.replicates && s < tape.stations.size(); ++s)
      if (plan_.wrapped[s] && !begins(tape, s) && !idle(tape, s))
        player.each_unit(s, false, [&](Unit, Index at) { drop_summed(sites(s), at); });
  }
  /// The gradient of a table that is the output layer's matrix too: its sharded one is there when the embedding's comes.
  bool joins_head(const Tape& tape, std::size_t s) const {
    return plan_.tied_units && tape.stations[s].place == StationPlace::embedding;
  }
  /// Under tensor parallelism the gradient of the whole table becomes a copy of this rank's part (_fsdp_param.py,
  /// _get_grad_inner_tensor: it is redistributed as the parameter is).
  void take_embedding_part(Player<R>& player, std::size_t embedding) {
    if (plan_.embedding_part == 0) return;
    r_.alloc(embedding_part_);
    player.free_gradients(embedding, Unit::first, Index(0), micro_);
  }
  void finish_backward(Player<R>& player) {
    const Tape& tape = player.tape();
    const std::size_t embedding = tape.station_at(StationPlace::embedding);
    const bool wrapped = plan_.wrapped[embedding];
    if (!wrapped) take_embedding_part(player, embedding);
    reduce(root(), Index(0), [&](Which which) {
      for (std::size_t s = 0; s < tape.stations.size(); ++s) {
        if (plan_.wrapped[owner_of(tape, s)]) continue;
        if (s == embedding && plan_.embedding_part > 0) {
          if (which == Which::all_but_last) r_.free(embedding_part_);
        } else {
          player.free_gradients(s, Unit::first, Index(0), micro_, which, plan_.root_last_leaf);
        }
      }
    });
    drop_summed(root(), Index(0));
    drop_idle(player);
    for (std::size_t s = 0; s < tape.stations.size(); ++s)
      if (in_front_of_blocks(tape.stations[s].place) && plan_.wrapped[s] && !idle(tape, s)) {
        reduce(sites(s), Index(0),
               [&](Which which) { player.free_gradients(s, Unit::first, Index(0), micro_, which, plan_.last_leaf[s]); });
        drop_summed(sites(s), Index(0));
      }
    if (wrapped && !idle(tape, embedding)) {
      take_embedding_part(player, embedding);
      joins_ = joins_head(tape, embedding);
      reduce(sites(embedding), Index(0), [&](Which which) {
        if (plan_.embedding_part == 0)
          player.free_gradients(embedding, Unit::first, Index(0), micro_, which, plan_.last_leaf[embedding]);
        else if (which == Which::last)
          r_.free(embedding_part_);
      });
      drop_summed(sites(embedding), Index(0));
      joins_ = false;
    }
    reduce_head_alone(player);
    drop_all_summed(player);
    if (reducing_ != nullptr) r_.free(reducing_->reduce_input, reducing_at_);
    reducing_ = nullptr;
  }

  /// The final callback goes through the units as the model registers them: the output layer comes last.
  void reduce_head_alone(Player<R>& player) {
    const Tape& tape = player.tape();
    const std::size_t head = tape.station_at(StationPlace::head);
    if (!plan_.wrapped[head] || !begins(tape, head)) return;
    reduce(sites(head), Index(0),
           [&](Which which) { player.free_gradients(head, Unit::first, Index(0), micro_, which, plan_.last_leaf[head]); });
    drop_summed(sites(head), Index(0));
  }

  R& r_;
  const TrainPlan& plan_;
  Index micro_;
  DdpBuckets<R> buckets_;
  HostCheckpoints<R> checkpoints_;
  SiteRef parameters_, optimizer_, steps_, buffers_, transient_, embedding_part_, host_parameters_, host_optimizer_, managed_;
  std::vector<SiteRef> parameter_sites_, state_sites_, transient_sites_;
  const UnitSites* before_ = nullptr;  ///< whose all-gather output is still held in forward
  Index before_at_;
  const UnitSites* reducing_ = nullptr;  ///< whose reduce-scatter input is still held in backward
  Index reducing_at_;
  const UnitSites* stray_ = nullptr;  ///< of a frozen tower, gathered ahead for nothing
  Index stray_at_;
  bool first_ = true, last_ = true;
  bool head_first_ = false;  ///< the output layer's unit was begun in front of the root
  bool joins_ = false;       ///< what is reduced now is added into a gradient that another unit's reduction made
  bool held_ = false;        ///< a forward pass without a backward pass came before
};

}  // namespace oomplan
