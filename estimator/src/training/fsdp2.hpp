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
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "training/ddp_buckets.hpp"
#include "training/plan.hpp"
#include "training/player.hpp"

namespace oomplan {

template <class R>
class Fsdp2 {
 public:
  /// `role` stands before the names of sites.
  Fsdp2(R& r, const TrainPlan& plan, std::string_view role) : r_(r), plan_(plan), micro_(Index(0)), buckets_(r, plan, role) {
    if constexpr (R::kWrites) {
      prefix_ = role.empty() ? "" : std::string(role) + ".";
      const Tape& any = plan.train != nullptr ? *plan.train : *plan.log_probs;
      units_.resize(any.stations.size());
      for (std::size_t s = 0; s < any.stations.size(); ++s)
        if (plan.wrapped[s]) units_[s] = sites_of(plan.units[s], station_name(any.stations[s].place));
      root_ = sites_of(plan.root, "root");
    } else {
      (void)role;
    }
    parameters_ = site("", "parameters", plan.resident, Category::weights, Holder::resident);
    optimizer_ = site("", "optimizer.states", plan.optimizer + plan.optimizer_steps, Category::optimizer, Holder::resident);
    host_parameters_ = host_site("", "parameters on the host", plan.resident);
    host_optimizer_ = host_site("", "optimizer states on the host", plan.optimizer);
    managed_ = host_site("", "optimizer states in unified memory", plan.optimizer_managed);
    buffers_ = site("", "buffers", plan.buffers, Category::buffers, Holder::resident);
    transient_ = site("", "optimizer.temporaries", plan.step_transient, Category::temporaries, Holder::local);
  }

  /// Parameters and buffers of this rank. Leaves them on the device, or on the host under CPUOffloadPolicy.
  void load() {
    if (plan_.cpu_offload)
      r_.alloc(host_parameters_);
    else
      place_parameters();
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
    r_.alloc(host_parameters_);
    take_parameters();
  }
  void reload_parameters() {
    place_parameters();
    r_.free(host_parameters_);
  }
  /// Optimizer states: made in the first step, lazily; where the step runs.
  void make_states() {
    r_.alloc(plan_.cpu_offload ? host_optimizer_ : optimizer_);
    if (plan_.optimizer_managed > 0) r_.alloc(managed_);
  }
  void offload_states() {
    r_.alloc(host_optimizer_);
    r_.free(optimizer_);
  }
  void reload_states() {
    r_.alloc(optimizer_);
    r_.free(host_optimizer_);
  }

  /// Forward pass of one micro-batch; `player` plays the tape of the pass.
  void forward(Player<R>& player, Index micro) {
    remember(micro_, micro);
    const Tape& tape = player.tape();
    const std::size_t n = tape.stations.size();
    player.play(station(tape, StationPlace::inputs), false, Unit::first, Index(0), micro);
    before_ = nullptr;
    if (plan_.sharded && !stays(plan_.reshard_root)) unshard_forward(root(), Index(0));
    for (std::size_t s = 1; s < n; ++s) {
      const auto place = tape.stations[s].place;
      if (place == StationPlace::loss && !plan_.loss_inside) leave_root();
      if (place == StationPlace::chunks || place == StationPlace::finish || place == StationPlace::loss) {
        player.play_all(s, false, micro);
        if (plan_.loss_inside && place == end_of_head(tape)) leave_root();
        continue;
      }
      player.each_unit(s, false, [&](Unit u, Index at) { forward_unit(player, s, u, at); });
    }
    held_ = true;
  }

  /// Backward pass of one micro-batch. `first`: no gradients are there yet. `last`: gradients are reduced (always, unless
  /// synchronisation is deferred).
  void backward(Player<R>& player, Index micro, bool first, bool last) {
    remember(micro_, micro);
    first_ = first;
    last_ = last || plan_.sync_every;
    reducing_ = nullptr;
    const Tape& tape = player.tape();
    const LeafGradients policy = leaf_gradients();
    for (std::size_t k = tape.stations.size(); k-- > 0;) {
      const auto place = tape.stations[k].place;
      if (place == StationPlace::inputs) continue;
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
    player.play(station(tape, StationPlace::inputs), true, Unit::first, Index(0), micro);
  }

  /// Clipping adds scalars only; the step holds what the optimizer's form needs.
  void optimizer_step() {
    if (plan_.cpu_offload) return;  // the step runs on the host
    r_.alloc(transient_);
    r_.free(transient_);
  }

  /// zero_grad(set_to_none=True).
  void drop_gradients(Player<R>& player) {
    const Tape& tape = player.tape();
    if (plan_.bucket_views) return;  // they lie in the buckets, which stay
    if (!plan_.sharded) {
      for (std::size_t s = tape.stations.size(); s-- > 0;)
        player.each_unit(s, true, [&](Unit u, Index at) { player.free_gradients(s, u, at, Index(0)); });
      return;
    }
    for (std::size_t s = 0; s < tape.stations.size(); ++s)
      if (plan_.wrapped[s] && trained(sites(s)))
        player.each_unit(s, false, [&](Unit, Index at) { r_.free(gradient(sites(s)), at); });
    if (trained(root())) r_.free(gradient(root()));
  }

 private:
  struct Sites {
    SiteRef upload, cast, gathered, unsharded, reduce_input, reduce_output, gradient, accumulated, kept_ahead, kept_rest;
  };
  /// What a pass knows of a unit: its sites, or for a fold their sizes alone, as the plan has them.
  using UnitSites = std::conditional_t<R::kWrites, Sites, UnitBytes>;
  const UnitSites& sites(std::size_t station) const {
    if constexpr (R::kWrites)
      return units_[station];
    else
      return plan_.units[station];
  }
  const UnitSites& root() const {
    if constexpr (R::kWrites)
      return root_;
    else
      return plan_.root;
  }
  /// Lies where the optimizer steps.
  SiteRef gradient(const UnitSites& u) const {
    if constexpr (R::kWrites)
      return u.gradient;
    else
      return {0, u.gradient, plan_.cpu_offload ? Pool::pinned : Pool::torch};
  }
  /// The shard in the compute dtype is a copy.
  static bool casts(const UnitSites& u) {
    if constexpr (R::kWrites)
      return u.cast.bytes > 0;
    else
      return u.cast > 0;
  }

  /// Nothing of a frozen unit is reduced: post_backward returns when no parameter of it has a gradient.
  static bool trained(const UnitSites& u) {
    if constexpr (R::kWrites)
      return u.reduce_input.bytes > 0;
    else
      return u.reduce_input > 0;
  }

  static std::string_view station_name(StationPlace place) {
    return place == StationPlace::embedding ? "embedding" : place == StationPlace::layers ? "layer" : "head";
  }
  SiteRef site(std::string_view unit, std::string_view name, Bytes bytes, Category category, Holder holder,
               std::uint8_t stream = 0) {
    if constexpr (R::kWrites) {
      Site row;
      row.name = named(unit, name);
      row.bytes = bytes;
      row.category = category;
      row.holder = holder;
      row.stream = stream;
      return r_.site(std::move(row));
    } else {
      (void)unit;
      (void)name;
      (void)category;
      (void)holder;
      (void)stream;
      return {0, bytes, Pool::torch};
    }
  }
  std::string named(std::string_view unit, std::string_view name) const {
    return prefix_ + std::string(unit) + (unit.empty() ? "" : ".") + std::string(name);
  }
  SiteRef host_site(std::string_view unit, std::string_view name, Bytes bytes) {
    if constexpr (R::kWrites) {
      Site row;
      row.name = named(unit, name);
      row.bytes = bytes;
      row.category = Category::host_copy;
      row.pool = Pool::pinned;
      row.holder = Holder::resident;
      return r_.site(std::move(row));
    } else {
      (void)unit;
      (void)name;
      return {0, bytes, Pool::pinned};
    }
  }
  Sites sites_of(const UnitBytes& b, std::string_view unit) {
    Sites s;
    s.upload = site(unit, "shard_from_host", b.upload, Category::communication, Holder::communication, 1);
    s.cast = site(unit, "shard_cast", b.cast, Category::communication, Holder::communication, 1);
    s.gathered = site(unit, "all_gather_output", b.gathered, Category::communication, Holder::communication, 1);
    s.unsharded = site(unit, "unsharded_parameters", b.unsharded, Category::weights, Holder::communication);
    s.reduce_input = site(unit, "reduce_scatter_input", b.reduce_input, Category::communication, Holder::communication);
    s.reduce_output = site(unit, "reduce_scatter_output", b.reduce_output, Category::communication, Holder::communication, 2);
    s.gradient = plan_.cpu_offload ? host_site(unit, "sharded_gradients", b.gradient)
                                   : site(unit, "sharded_gradients", b.gradient, Category::gradients, Holder::autograd, 2);
    if (plan_.reshard_ranks > 0) {
      s.kept_ahead = site(unit, "post_forward_shards", b.kept_ahead, Category::weights, Holder::communication);
      s.kept_rest = site(unit, "post_forward_shards.rest", b.kept_rest, Category::weights, Holder::communication);
    }
    s.accumulated = site(unit, "unsharded_gradients", b.accumulated, Category::gradients, Holder::autograd);
    return s;
  }
  static std::size_t station(const Tape& tape, StationPlace place) {
    for (std::size_t s = 0; s < tape.stations.size(); ++s)
      if (tape.stations[s].place == place) return s;
    throw Defect("a tape without a station that every tape has");
  }

  /// Parameters one by one when a program is written, as one sum when it is folded.
  template <class Do>
  void each_leaf(Do&& act) {
    if constexpr (!R::kWrites) {
      act(parameters_, Index(0));
    } else {
      const Tape& tape = plan_.train != nullptr ? *plan_.train : *plan_.log_probs;
      if (parameter_sites_.empty())
        for (std::size_t i = 0; i < tape.leaves.size(); ++i)
          parameter_sites_.push_back(leaf_site(tape.leaves[i], plan_.storage[i]));
      for (std::size_t i = 0; i < tape.leaves.size(); ++i)
        r_.repeat(tape.stations[tape.leaves[i].station].count, [&](Index at) { act(parameter_sites_[i], at); });
    }
  }
  SiteRef leaf_site(const TapeLeaf& leaf, DType storage) {
    Site row;
    row.name = prefix_ + leaf.name;
    row.shape = leaf.shape;
    if (!row.shape.empty() && plan_.sharded) row.shape[0] = ceil_div(row.shape[0], plan_.ranks);
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
    const bool hooked = plan_.sharded && plan_.wrapped[s] && !stays(plan_.reshard_layers);
    if (hooked) {
      if (u == Unit::inner || u == Unit::last) {
        before_ = &sites(s);
        remember(before_at_, at - 1);
      }
      const bool chained = plan_.forward_prefetch && player.tape().stations[s].place == StationPlace::layers;
      unshard_forward(sites(s), at, chained && (u == Unit::inner || u == Unit::last || follows_layers(player.tape(), s)));
      if (chained) prefetch_forward(player.tape(), s, u, at);
    }
    player.play(s, false, u, at, micro_);
    if (hooked && plan_.reshard_layers) reshard(sites(s), at);
  }
  static bool follows_layers(const Tape& tape, std::size_t s) {
    for (std::size_t k = 0; k < s; ++k)
      if (tape.stations[k].place == StationPlace::layers) return true;
    return false;
  }
  /// set_modules_to_forward_prefetch of every layer with the next one: its gather begins before this one computes.
  void prefetch_forward(const Tape& tape, std::size_t s, Unit u, Index at) {
    const bool kept = held_ && keeps();
    if (u != Unit::last && tape.stations[s].count > 1) return gather(sites(s), at + 1, kept);
    for (std::size_t k = s + 1; k < tape.stations.size(); ++k)
      if (tape.stations[k].place == StationPlace::layers) return gather(sites(k), Index(0), kept);
  }
  /// The last station of a loss inside of the model.
  static StationPlace end_of_head(const Tape& tape) {
    for (const auto& station : tape.stations)
      if (station.place == StationPlace::chunks) return StationPlace::chunks;
    return StationPlace::loss;
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
    if (plan_.sharded) return LeafGradients::keep;
    if (!plan_.bucket_views) return first_ ? LeafGradients::keep : LeafGradients::add;
    if (plan_.sync_every || (first_ && last_)) return LeafGradients::add;
    return first_ ? LeafGradients::keep : last_ ? LeafGradients::move : LeafGradients::add;
  }
  /// The unit that ran before station s in forward order (what its backward prefetches), if any.
  const UnitSites* earlier(const Tape& tape, std::size_t s, Index& at) const {
    for (std::size_t k = s; k-- > 0;) {
      if (!plan_.wrapped[k]) continue;
      at = Index(tape.stations[k].count - 1);
      return &sites(k);
    }
    return nullptr;
  }
  void enter_root(const Tape& tape) {
    if (plan_.reshard_root) {
      gather(root(), Index(0), keeps());
      copy_out(root(), Index(0), keeps());
      r_.free(root().gathered);
    }
    Index at(0);
    const UnitSites* target = plan_.reshard_layers ? earlier(tape, tape.stations.size(), at) : nullptr;
    if (target != nullptr) gather(*target, at, keeps());
  }
  void backward_unit(Player<R>& player, std::size_t s, Unit u, Index at, LeafGradients policy) {
    if (!plan_.sharded || !plan_.wrapped[s]) return player.play(s, true, u, at, micro_, policy);
    const UnitSites& unit = sites(s);
    if (plan_.reshard_layers) {
      copy_out(unit, at, keeps());
      r_.free(unit.gathered, at);
      Index before(0);
      const UnitSites* target = &unit;
      if (u == Unit::first)
        target = earlier(player.tape(), s, before);
      else
        before = at - 1;
      if (target != nullptr) gather(*target, before, keeps());
    }
    player.play(s, true, u, at, micro_, policy);
    // A module whose input needs no gradient is reduced by the root's final callback.
    if (player.tape().stations[s].place == StationPlace::embedding) return;
    if (last_ && u != Unit::last && player.tape().stations[s].count > 1) {
      reducing_ = &unit;
      remember(reducing_at_, at + 1);
    }
    reduce(unit, at, [&](Which which) { player.free_gradients(s, u, at, micro_, which, plan_.last_leaf[s]); });
  }

  /// post_backward of one unit. free_fresh(Which) drops this micro-batch's gradients. The last parameter's gradient is held by
  /// a loop variable until the function returns.
  template <class FreeFresh>
  void reduce(const UnitSites& unit, Index at, FreeFresh&& free_fresh) {
    if (!trained(unit)) return r_.free(unit.unsharded, at);
    if (!plan_.sync_every) {
      // unsharded gradients are cast to the reduce dtype and added up
      free_fresh(Which::all_but_last);
      if (first_) r_.alloc(unit.accumulated, at);
      free_fresh(Which::last);
    }
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
  void shard_gradient(const UnitSites& unit, Index at) {
    const bool exists = plan_.sync_every && !first_;
    if (exists) return r_.free(unit.reduce_output, at);  // added into the sharded gradient
    const bool copies = plan_.casts_gradients || plan_.cpu_offload;
    if (copies) r_.alloc(gradient(unit), at);
    r_.free(unit.reduce_output, at);
    if (!copies) r_.alloc(gradient(unit), at);  // a view of the output: the same memory under another name
  }
  void finish_backward(Player<R>& player) {
    const Tape& tape = player.tape();
    reduce(root(), Index(0), [&](Which which) {
      for (std::size_t s = 0; s < tape.stations.size(); ++s)
        if (!plan_.wrapped[s]) player.free_gradients(s, Unit::first, Index(0), micro_, which, plan_.root_last_leaf);
    });
    const std::size_t embedding = station(tape, StationPlace::embedding);
    if (plan_.wrapped[embedding])
      reduce(sites(embedding), Index(0), [&](Which which) {
        player.free_gradients(embedding, Unit::first, Index(0), micro_, which, plan_.last_leaf[embedding]);
      });
    if (reducing_ != nullptr) r_.free(reducing_->reduce_input, reducing_at_);
    reducing_ = nullptr;
  }

  R& r_;
  const TrainPlan& plan_;
  std::string prefix_;
  Index micro_;
  std::vector<Sites> units_;  ///< of the stations; only when a program is written
  Sites root_;
  DdpBuckets<R> buckets_;
  SiteRef parameters_, optimizer_, buffers_, transient_, host_parameters_, host_optimizer_, managed_;
  std::vector<SiteRef> parameter_sites_;
  const UnitSites* before_ = nullptr;  ///< whose all-gather output is still held in forward
  Index before_at_;
  const UnitSites* reducing_ = nullptr;  ///< whose reduce-scatter input is still held in backward
  Index reducing_at_;
  bool first_ = true, last_ = true;
  bool held_ = false;  ///< a forward pass without a backward pass came before
};

}  // namespace oomplan
