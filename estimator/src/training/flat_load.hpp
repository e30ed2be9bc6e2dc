// FSDP1 is built: unit by unit parameters come to the device, become one flat parameter and are cut. What that leaves in the
// allocator's cache is there when training begins.
//
// torch 2.13, torch/distributed/fsdp/_init_utils.py (_init_param_handle_from_module), with a device_id and sync_module_states as
// accelerate, verl and fsdp_qlora set them: layers first, the root last; the list of a unit's parameters lives until its handle
// is made and cut. The broadcast's buckets (flat_units.hpp) are two in flight.
#pragma once
#include <algorithm>
#include <cstddef>
#include <string_view>
#include <vector>

#include <oomplan/units/bytes.hpp>

#include "training/flat_sites.hpp"

namespace oomplan {

template <class R>
class FlatLoad : public FlatSites<R> {
  using Base = FlatSites<R>;

 protected:
  using UnitSites = typename Base::UnitSites;
  using Base::plan_, Base::r_, Base::root, Base::sites, Base::tape;

 public:
  FlatLoad(R& r, const TrainPlan& plan, std::string_view role) : Base(r, plan, role) {
    if constexpr (R::kWrites) {
      const Tape& t = tape();
      const std::size_t stations = t.stations.size();
      raw_.resize(stations + 1);  // the root comes last
      for (std::size_t s = 0; s <= stations; ++s)
        if (s == stations || plan.wrapped[s]) raw_[s] = raw_sites(s, s == stations ? plan.flat.root : plan.flat.units[s]);
    }
  }

 protected:
  void build_units() {
    for (std::size_t s = 0; s < plan_.wrapped.size(); ++s)
      if (plan_.wrapped[s]) r_.repeat(tape().stations[s].count, [&](Index at) { build(s, sites(s), at); });
    build(tape().stations.size(), root(), Index(0));
  }

 private:
  struct Raw {
    std::vector<SiteRef> originals, buckets, tables;
    SiteRef flat;
  };

  void build(std::size_t unit, const UnitSites& u, Index at) {
    if constexpr (R::kWrites) {
      for (const auto& adapter : u.adapters) build_adapter(adapter, at);
      const Raw& raw = raw_[unit];
      for (const auto& tensor : raw.originals) r_.alloc(tensor, at);
      for (const auto& table : raw.tables) r_.alloc(table, at);
      const std::size_t buckets = raw.buckets.size(), kept = buckets - std::min(kBucketsInFlight, buckets);
      for (std::size_t i = 0; i < buckets; ++i) {
        if (i >= kBucketsInFlight) r_.free(raw.buckets[i - kBucketsInFlight], at);
        r_.alloc(raw.buckets[i], at);
      }
      const auto drop_buckets = [&] {
        for (std::size_t i = kept; i < buckets; ++i) r_.free(raw.buckets[i], at);
      };
      // NCCL's stream gets there while the next unit's tensors come from the host
      if (!plan_.records_streams) drop_buckets();
      cut(raw.flat, u.parameter, at);
      if (plan_.records_streams) drop_buckets();
      for (const auto& tensor : raw.originals) r_.free(tensor, at);
      if (!plan_.cpu_offload) return;
      for (const auto& adapter : u.adapters) r_.free(adapter.shard, at);
      r_.free(u.parameter, at);
    } else {
      r_.alloc(u.tables, at);
      r_.alloc(u.originals + u.kept_buckets, at);
      cut(u.flat, u.resident, at);
      r_.free(u.originals + u.kept_buckets, at);
      if (plan_.cpu_offload) r_.free(u.resident, at);
    }
  }
  /// Units of their own, which are wrapped before the one around them. One that FSDP ignores is only moved.
  template <class Adapter>
  void build_adapter(const Adapter& a, Index at) {
    if (a.flat.bytes == 0) return r_.alloc(a.shard, at);
    r_.alloc(a.original, at);
    cut(a.flat, a.shard, at);
    r_.free(a.original, at);
  }
  /// On one rank the flat parameter stays as it is.
  template <class Size>
  void cut(const Size& flat, const Size& shard, Index at) {
    if (plan_.ranks > 1) r_.alloc(flat, at);
    r_.alloc(shard, at);
    if (plan_.ranks > 1) r_.free(flat, at);
  }

  Raw raw_sites(std::size_t unit, const FlatBytes& bytes) {
    const Tape& t = tape();
    const std::string_view name = unit == t.stations.size() ? "root" : "layer";
    const auto row = [&](std::string_view what, Bytes size, Holder holder) {
      return this->site(name, what, size, Category::weights, holder);
    };
    Raw out;
    for (std::size_t i = 0; i < t.leaves.size(); ++i) {
      const TapeLeaf& leaf = t.leaves[i];
      const std::size_t home = plan_.wrapped[leaf.station] ? leaf.station : t.stations.size();
      const Bytes size = plan_.flat.originals[i];
      if (home == unit && size > 0) out.originals.push_back(row(leaf.name, size, Holder::local));
    }
    for (const Bytes bucket : plan_.flat.buckets[unit])
      out.buckets.push_back(row("broadcast_bucket", bucket, Holder::communication));
    for (const char* table : {"rotary.cos_cached", "rotary.sin_cached"})
      out.tables.push_back(this->site(name, table, bytes.tables / 2, Category::buffers, Holder::resident));
    out.flat = row("flat_parameter_uncut", bytes.flat, Holder::local);
    return out;
  }

  std::vector<Raw> raw_;  ///< of the stations, then the root; only when a program is written
};

}  // namespace oomplan
