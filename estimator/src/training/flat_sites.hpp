// What FSDP1 allocates, unit by unit: rows of a program's table when one is written, the plan's sizes when it is folded.
#pragma once
#include <string_view>
#include <type_traits>
#include <vector>

#include "training/engine_sites.hpp"
#include "training/plan.hpp"

namespace oomplan {

template <class R>
class FlatSites : public EngineSites<R> {
 public:
  FlatSites(R& r, const TrainPlan& plan, std::string_view role) : EngineSites<R>(r, role), r_(r), plan_(plan) {
    if constexpr (R::kWrites) {
      const Tape& any = tape();
      units_.resize(any.stations.size());
      for (std::size_t s = 0; s < any.stations.size(); ++s)
        if (plan.wrapped[s]) units_[s] = sites_of(plan.flat.units[s], s, "layer");
      root_ = sites_of(plan.flat.root, any.stations.size(), "root");
      std::vector<std::size_t> seen(any.stations.size() + 1);  // of each unit's
      for (const AdapterFlat& a : plan.flat.adapters) {
        const Sites& unit = a.home == any.stations.size() ? root_ : units_[a.home];
        const SiteRef& gradient = unit.adapters[seen[a.home]++].gradient;
        adapters_.push_back(gather_sites(a.gathered, gradient, a.home == any.stations.size()));
      }
    }
  }

 protected:
  struct Adapter {
    SiteRef original, flat, shard, gradient, square_root;
    std::vector<SiteRef> states;
  };
  struct Sites {
    SiteRef parameter, upload, low_precision, unsharded, zeros, fresh, reduced, padded, output, gradient, adapter_fresh,
        adapter_unsharded;
    std::vector<Adapter> adapters;
    Bytes adapter_gradients = 0;
    bool casts = false;
    SiteRef whole, pieces;   ///< what state_dict() reads, and what it keeps
    SiteRef copies;          ///< beside the pieces while they are cut
    SiteRef adapter_whole;   ///< what state_dict() reads of adapters inside of the unit
    SiteRef unsynchronised;  ///< fresh, of earlier micro-batches
    SiteRef cast_sum;        ///< gradient, beside one that is there
    SiteRef upload_again;    ///< upload, beside one that is there
  };
  /// What a pass knows of a unit: its sites, or for a fold their sizes alone, as the plan has them.
  using UnitSites = std::conditional_t<R::kWrites, Sites, FlatBytes>;
  const Tape& tape() const { return plan_.tape(); }
  const UnitSites& sites(std::size_t station) const {
    if constexpr (R::kWrites)
      return units_[station];
    else
      return plan_.flat.units[station];
  }
  const UnitSites& root() const {
    if constexpr (R::kWrites)
      return root_;
    else
      return plan_.flat.root;
  }
  /// Number of the adapter that is a unit of its own and has this parameter; -1: none has.
  int adapter(int leaf) const {
    for (std::size_t i = 0; i < plan_.flat.adapters.size(); ++i)
      if (plan_.flat.adapters[i].leaf == leaf && plan_.flat.adapters[i].gathered.fresh > 0) return static_cast<int>(i);
    return -1;
  }
  const UnitSites& adapter_unit(int number) const {
    if constexpr (R::kWrites)
      return adapters_[static_cast<std::size_t>(number)];
    else
      return plan_.flat.adapters[static_cast<std::size_t>(number)].gathered;
  }
  auto adapter_gradient(int number) const {
    if constexpr (R::kWrites)
      return adapters_[static_cast<std::size_t>(number)].gradient;
    else
      return plan_.flat.adapters[static_cast<std::size_t>(number)].shard;
  }
  static const auto& unsynchronised(const UnitSites& u) {
    if constexpr (R::kWrites)
      return u.unsynchronised;
    else
      return u.fresh;
  }
  static const auto& upload_again(const UnitSites& u) {
    if constexpr (R::kWrites)
      return u.upload_again;
    else
      return u.upload;
  }
  static const auto& cast_sum(const UnitSites& u) {
    if constexpr (R::kWrites)
      return u.cast_sum;
    else
      return u.gradient;
  }
  /// Gradients of the adapters inside of a unit: one by one when a program is written.
  template <class Do>
  static void each_adapter_gradient(const UnitSites& u, Do&& act) {
    if constexpr (R::kWrites) {
      for (const Adapter& a : u.adapters) act(a.gradient);
    } else {
      act(u.adapter_gradients);
    }
  }
  static Bytes size(const SiteRef& s) { return s.bytes; }
  static Bytes size(Bytes bytes) { return bytes; }
  static bool trained(const UnitSites& u) { return size(u.fresh) > 0; }
  /// The reduced gradient is cast to the format that the unit is stored in.
  static bool casts(const UnitSites& u) { return u.casts; }

  /// All units, the root first.
  template <class Do>
  void each_unit_of_the_model(Do&& act) {
    act(root(), Index(0));
    each_layer(act);
  }
  template <class Do>
  void each_layer(Do&& act) {
    for (std::size_t s = 0; s < plan_.wrapped.size(); ++s)
      if (plan_.wrapped[s]) r_.repeat(tape().stations[s].count, [&](Index at) { act(sites(s), at); });
  }

  R& r_;
  const TrainPlan& plan_;

 private:
  Sites sites_of(const FlatBytes& b, std::size_t home, std::string_view unit) {
    // streams of the caching allocator: 1 all-gathers, 2 reductions, 3 what comes before an all-gather (_init_streams)
    const auto row = [this, unit](std::string_view name, Bytes bytes, Category category, Holder holder, std::uint8_t stream) {
      return this->site(unit, name, bytes, category, holder, stream);
    };
    Sites s;
    Bytes of_adapters = 0;
    for (const AdapterFlat& a : plan_.flat.adapters) {
      if (a.home != home) continue;
      of_adapters += a.shard;
      s.adapters.push_back(adapter_sites(a, unit));
    }
    s.adapter_gradients = b.adapter_gradients;
    s.parameter = row("flat_parameter", b.resident - of_adapters, Category::weights, Holder::resident, 0);
    s.upload = row("shard_from_host", b.upload, Category::communication, Holder::communication, 3);
    s.upload_again = row("shard_from_host_again", b.upload, Category::communication, Holder::communication, 3);
    s.low_precision = row("shard_cast", b.low_precision, Category::communication, Holder::communication, 3);
    s.unsharded = this->site(unit, "unsharded_flat_parameter", b.unsharded, Category::weights, Holder::communication, 1,
                             plan_.gathers_in_flight);
    s.whole = row("gathered_for_state_dict", b.whole, Category::weights, Holder::communication, 1);
    s.pieces = row("state_dict", b.pieces, Category::weights, Holder::caller, 0);
    s.copies = row("copy_for_state_dict", b.copies, Category::weights, Holder::local, 0);
    s.adapter_whole = row("adapters.gathered_for_state_dict", b.adapter_whole, Category::weights, Holder::communication, 1);
    put_gradients(s, b, unit);
    s.gradient = row("sharded_gradient", b.gradient, Category::gradients, Holder::autograd, 2);
    s.adapter_unsharded =
        row("adapters.unsharded_flat_parameters", b.adapter_unsharded, Category::weights, Holder::communication, 1);
    s.adapter_fresh = row("adapters.flat_gradients", b.adapter_fresh, Category::gradients, Holder::autograd, 0);
    return s;
  }
  void put_gradients(Sites& s, const FlatBytes& b, std::string_view unit) {
    const auto row = [this, unit](std::string_view name, Bytes bytes, Category category, Holder holder, std::uint8_t stream) {
      return this->site(unit, name, bytes, category, holder, stream);
    };
    s.casts = b.casts;
    s.zeros = row("zeros_of_unreached", b.zeros, Category::gradients, Holder::autograd, 0);
    s.fresh = row("flat_gradient", b.fresh, Category::gradients, Holder::autograd, 0);
    s.unsynchronised = row("unsynchronised_flat_gradient", b.fresh, Category::gradients, Holder::autograd, 0);
    s.reduced = row("flat_gradient_cast", b.reduced, Category::communication, Holder::communication, 2);
    s.padded = row("flat_gradient_padded", b.padded, Category::communication, Holder::communication, 2);
    s.output = row("reduce_scatter_output", b.output, Category::communication, Holder::communication, 2);
    s.cast_sum = row("sharded_gradient_cast", b.gradient, Category::communication, Holder::communication, 2);
  }
  Adapter adapter_sites(const AdapterFlat& a, std::string_view unit) {
    const auto row = [this, unit](std::string_view name, Bytes bytes, Category category, Holder holder, std::uint8_t stream) {
      return this->site(unit, name, bytes, category, holder, stream);
    };
    Adapter s;
    s.original = row("adapter", a.original, Category::weights, Holder::local, 0);
    s.flat = row("adapter.flat_parameter_uncut", a.flat, Category::weights, Holder::local, 0);
    s.shard = row("adapter.flat_parameter", a.shard, Category::weights, Holder::resident, 0);
    s.gradient = row("adapter.sharded_gradient", a.shard, Category::gradients, Holder::autograd, 2);
    s.square_root = row("adapter.optimizer.square_root", a.shard, Category::temporaries, Holder::local, 0);
    for (std::int64_t n = 0; plan_.states_by_tensor && n < plan_.state_bytes_of; ++n)
      s.states.push_back(row("adapter.optimizer.state", a.shard, Category::optimizer, Holder::resident, 0));
    return s;
  }

  /// `of_root`: it is reduced by itself.
  Sites gather_sites(const FlatBytes& b, const SiteRef& gradient, bool of_root) {
    Sites s;
    s.gradient = gradient;
    if (of_root) put_gradients(s, b, "root.adapter");
    if (!of_root && plan_.forward_prefetch)
      s.fresh = this->site("layer", "adapter.flat_gradient", b.fresh, Category::gradients, Holder::autograd, 0);
    s.upload = this->site("layer", "adapter.shard_from_host", b.upload, Category::communication, Holder::communication, 3);
    s.low_precision =
        this->site("layer", "adapter.shard_cast", b.low_precision, Category::communication, Holder::communication, 3);
    s.unsharded =
        this->site("layer", "adapter.unsharded_flat_parameter", b.unsharded, Category::weights, Holder::communication, 1);
    return s;
  }

  std::vector<Sites> units_;     ///< of the stations; only when a program is written
  std::vector<Sites> adapters_;  ///< the same, of adapters that are units of their own
  Sites root_;
};

}  // namespace oomplan
