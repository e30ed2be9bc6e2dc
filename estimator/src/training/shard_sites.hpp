// What FSDP2 allocates, unit by unit: rows of a program's table when one is written, the plan's sizes when it is folded.
#pragma once
#include <string_view>
#include <type_traits>
#include <vector>

#include "training/engine_sites.hpp"
#include "training/plan.hpp"

namespace oomplan {

template <class R>
class ShardSites : public EngineSites<R> {
 public:
  ShardSites(R& r, const TrainPlan& plan, std::string_view role) : EngineSites<R>(r, role), plan_(plan) {
    if constexpr (R::kWrites) {
      const Tape& any = plan.train != nullptr ? *plan.train : *plan.log_probs;
      units_.resize(any.stations.size());
      for (std::size_t s = 0; s < any.stations.size(); ++s)
        if (plan.wrapped[s]) units_[s] = sites_of(plan.units[s], station_name(any.stations[s].place));
      root_ = sites_of(plan.root, "root");
    }
  }

 protected:
  using EngineSites<R>::site, EngineSites<R>::host_site;
  struct Sites {
    SiteRef upload, scaled, cast, gathered, unsharded, reduce_input, reduce_output, reduced, gradient, accumulated, kept_ahead,
        kept_rest;
    bool casts_reduced = false;
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
  /// As the gradient, where that is there already or lies on the host.
  SiteRef reduced(const UnitSites& u) const {
    if constexpr (R::kWrites)
      return u.reduced;
    else
      return {0, u.gradient, Pool::torch};
  }
  /// The shard in the compute dtype is a copy.
  static bool casts(const UnitSites& u) {
    if constexpr (R::kWrites)
      return u.cast.bytes > 0;
    else
      return u.cast > 0;
  }

  /// The reduced gradient is cast to the format of the parameters.
  static bool casts_reduced(const UnitSites& u) { return u.casts_reduced; }

  /// Its matrices are gathered in 8 bits.
  static bool scales(const UnitSites& u) {
    if constexpr (R::kWrites)
      return u.scaled.bytes > 0;
    else
      return u.scaled > 0;
  }

  /// Nothing of a frozen unit is reduced: post_backward returns when no parameter of it has a gradient.
  static bool trained(const UnitSites& u) {
    if constexpr (R::kWrites)
      return u.reduce_input.bytes > 0;
    else
      return u.reduce_input > 0;
  }

 private:
  static std::string_view station_name(StationPlace place) {
    return place == StationPlace::embedding ? "embedding" : place == StationPlace::layers ? "layer" : "head";
  }
  Sites sites_of(const UnitBytes& b, std::string_view unit) {
    Sites s;
    s.upload = site(unit, "shard_from_host", b.upload, Category::communication, Holder::communication, 1);
    if (b.scaled > 0) s.scaled = site(unit, "shard_scaled", b.scaled, Category::communication, Holder::communication, 1);
    s.cast = site(unit, "shard_cast", b.cast, Category::communication, Holder::communication, 1);
    s.gathered = site(unit, "all_gather_output", b.gathered, Category::communication, Holder::communication, 1);
    s.unsharded = site(unit, "unsharded_parameters", b.unsharded, Category::weights, Holder::communication);
    s.reduce_input = site(unit, "reduce_scatter_input", b.reduce_input, Category::communication, Holder::communication);
    s.reduce_output = site(unit, "reduce_scatter_output", b.reduce_output, Category::communication, Holder::communication, 2);
    s.casts_reduced = b.casts_reduced;
    if (b.casts_reduced && (plan_.cpu_offload || plan_.sync_every))
      s.reduced = site(unit, "reduced_gradients", b.gradient, Category::communication, Holder::communication, 2);
    s.gradient = plan_.cpu_offload ? host_site(unit, "sharded_gradients", b.gradient)
                                   : site(unit, "sharded_gradients", b.gradient, Category::gradients, Holder::autograd, 2);
    if (plan_.reshard_ranks > 0) {
      s.kept_ahead = site(unit, "post_forward_shards", b.kept_ahead, Category::weights, Holder::communication);
      s.kept_rest = site(unit, "post_forward_shards.rest", b.kept_rest, Category::weights, Holder::communication);
    }
    s.accumulated = site(unit, "unsharded_gradients", b.accumulated, Category::gradients, Holder::autograd);
    return s;
  }

  const TrainPlan& plan_;
  std::vector<Sites> units_;  ///< of the stations; only when a program is written
  Sites root_;
};

}  // namespace oomplan
