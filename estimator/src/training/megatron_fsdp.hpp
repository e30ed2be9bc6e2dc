// A rank of Megatron-core under Megatron-FSDP: buckets around the layers' passes, and the optimizer's step.
//
// megatron-core 0.16.1, megatron/core/distributed/fsdp/src/megatron_fsdp/megatron_fsdp.py: _register_fsdp_hooks,
// start_param_sync, finish_grad_sync; optimizer/distrib_optimizer.py: step_with_ready_grads. What happens between the hooks is
// FsdpPipeline's.
#pragma once
#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "training/engine_sites.hpp"
#include "training/megatron_fsdp_pipeline.hpp"
#include "training/megatron_fsdp_stops.hpp"
#include "training/megatron_plan.hpp"
#include "training/player.hpp"

namespace oomplan {

template <class R>
class MegatronFsdpEngine {
 public:
  using Told = std::function<void(bool backward)>;  ///< of every pass as it begins

  /// `role` stands before the names of sites. REQUIRES: `r` and `stage` outlive this, and the stage has an FSDP plan.
  MegatronFsdpEngine(R& r, const MegatronStage& stage, std::string_view role)
      : r_(r),
        stage_(stage),
        plan_(*stage.fsdp),
        sites_(r, role),
        tape_(*stage.chunks.front()),
        player_(r, tape_, stage.counts, 1, sites_.prefix() + "stage"),
        pipeline_(plan_),
        stops_(fsdp_stops(tape_, plan_)) {
    for (const FsdpBucket& b : plan_.buckets) buckets_.push_back(sites_of(b));
    gradients_ = resident("gradient_buffer", gradient_bytes(), Category::gradients);
    workspace_ = resident("te_workspaces", stage.workspace * stage.workspaces, Category::workspace);
    gathered_ = resident("output_layer_gather_buffer", stage.gathered, Category::communication);
    tables_ = resident("rotary_tables", stage.tables, Category::buffers);
  }
  MegatronFsdpEngine(const MegatronFsdpEngine&) = delete;
  MegatronFsdpEngine& operator=(const MegatronFsdpEngine&) = delete;

  /// The model is there as it was built; bucket by bucket it moves into its buffers.
  void load() {
    for (std::size_t b = 0; b < buckets_.size() && !plan_.from_meta; ++b) built(b, true);
    if (plan_.strategy == MegatronFsdpStrategy::no_shard)
      built_stay();
    else
      built_move();
    r_.alloc(gradients_);
  }
  /// All micro-batches of a step. `micro_batches`: how many of them are played.
  void passes(std::int64_t micro_batches, const Told& told) {
    if (std::exchange(has_wide_gradients_, false)) wide_gradients(false);
    for (std::int64_t m = 0; m < micro_batches; ++m) {
      told(false);
      if (!std::exchange(started_, true)) start();
      forward(Index(m));
      told(true);
      backward(Index(m), m + 1 == micro_batches);
    }
  }
  /// finish_grad_sync, the step, and the first buckets of the next one.
  void optimizer_step() {
    act([&] { pipeline_.end_backward(); });
    if (plan_.reduce != DType::fp32) {
      wide_gradients(true);
      has_wide_gradients_ = true;
    }
    act([&] { pipeline_.reset(); });
    if (!std::exchange(has_states_, true))
      for (std::size_t b = 0; b < buckets_.size(); ++b) each(buckets_[b].states, b, [this](auto... at) { r_.alloc(at...); });
    act([&] { pipeline_.gather(of(kOutsideLayers, FsdpModule::embedding), FsdpPipeline::Ahead::forward); });
  }

 private:
  using Several = std::vector<std::pair<SiteRef, std::int64_t>>;  ///< with how many of each
  struct BucketSites {
    SiteRef weights, shard, master, gradients, reduced;
    std::array<SiteRef, 2> pooled;  ///< weights, gradients
    Several built, states, wide;
  };

  // ---- what lives

  SiteRef resident(std::string_view name, Bytes bytes, Category category) {
    return site("", name, bytes, category, Holder::resident, 0);
  }
  /// One row of the table for each name and size.
  SiteRef site(std::string_view unit, std::string_view name, Bytes bytes, Category category, Holder holder, std::uint8_t stream) {
    if constexpr (R::kWrites) {
      const auto [known, fresh] = known_.try_emplace({sites_.named(unit, name), bytes});
      if (fresh) known->second = sites_.site(unit, name, bytes, category, holder, stream);
      return known->second;
    } else {
      return sites_.site(unit, name, bytes, category, holder, stream);
    }
  }
  BucketSites sites_of(const FsdpBucket& b) {
    constexpr std::uint8_t kGathers = 1, kReduces = 2;
    const std::string_view unit = b.unit == kOutsideLayers ? "outside" : "layer";
    const auto bytes = [](std::int64_t n, DType format) { return bytes_of(n, format); };
    const auto one = [&](std::string_view name, Bytes size, Category category, Holder holder, std::uint8_t stream) {
      return site(unit, name, size, category, holder, stream);
    };
    BucketSites out;
    const Bytes whole = bytes(b.elements, DType::bf16), gradient = bytes(b.elements, plan_.reduce);
    out.weights = one("gathered_parameters", whole, Category::weights, Holder::communication, kGathers);
    out.gradients = one("gradients_of_a_bucket", gradient, Category::gradients, Holder::communication, 0);
    out.reduced =
        one("reduced_gradients", bytes(b.shard, plan_.reduce), Category::communication, Holder::communication, kReduces);
    out.pooled = {one("double_buffer_of_parameters", whole, Category::weights, Holder::resident, 0),
                  one("double_buffer_of_gradients", gradient, Category::gradients, Holder::resident, 0)};
    const std::int64_t kept = plan_.splits_weights ? b.shard : b.elements;
    out.shard = one("parameter_buffer", bytes(kept, DType::bf16), Category::weights, Holder::resident, 0);
    const std::int64_t masters = plan_.splits_masters ? b.shard : b.elements;
    out.master = one("masters", bytes(masters, DType::fp32), Category::optimizer, Holder::resident, 0);
    const std::vector<std::int64_t> largest{*std::max_element(b.parameters.begin(), b.parameters.end())};
    out.built = several(unit, "parameters_as_built", plan_.from_meta ? largest : b.parameters, DType::bf16, Category::weights, 1);
    out.states = several(unit, "optimizer_states", b.parts, DType::fp32, Category::optimizer, 2);
    out.wide = several(unit, "fp32_gradients", b.parts, DType::fp32, Category::gradients, 1);
    return out;
  }
  /// Tensor by tensor where a program is written, because the allocator hands some blocks out whole; otherwise their sum.
  Several several(std::string_view unit, std::string_view name, const std::vector<std::int64_t>& elements, DType format,
                  Category category, std::int64_t copies) {
    Several out;
    Bytes sum = 0;
    for (const std::int64_t n : elements) {
      sum += copies * bytes_of(n, format);
      if constexpr (R::kWrites) out.emplace_back(site(unit, name, bytes_of(n, format), category, Holder::resident, 0), copies);
    }
    if constexpr (!R::kWrites) out.emplace_back(site(unit, name, sum, category, Holder::resident, 0), 1);
    return out;
  }
  /// Of a bucket's tensors each one with a number of its own.
  template <class Do>
  void each(const Several& tensors, std::size_t bucket, Do&& act) {
    std::int64_t number = 0;
    for (const auto& [site, count] : tensors)
      for (std::int64_t i = 0; i < count; ++i) act(site, Index(static_cast<std::int64_t>(bucket)), Index(number++));
  }
  Bytes gradient_bytes() const {
    std::int64_t n = 0;
    for (const FsdpBucket& b : plan_.buckets) n += plan_.splits_gradients ? b.shard : b.elements;
    return bytes_of(n, plan_.reduce);
  }
  void wide_gradients(bool made) {
    for (std::size_t b = 0; b < buckets_.size(); ++b)
      each(buckets_[b].wide, b, [&](auto... at) {
        if (made)
          r_.alloc(at...);
        else
          r_.free(at...);
      });
  }
  static Index numbered(std::size_t bucket) { return Index(static_cast<std::int64_t>(bucket)); }
  void built(std::size_t bucket, bool made) {
    each(buckets_[bucket].built, bucket, [&](auto... at) {
      if (made)
        r_.alloc(at...);
      else
        r_.free(at...);
    });
  }
  void built_stay() {
    for (std::size_t b = 0; b < buckets_.size(); ++b) r_.alloc(buckets_[b].master, numbered(b));
  }
  void built_move() {
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      const BucketSites& s = buckets_[b];
      r_.alloc(s.shard, numbered(b));
      act([&] { pipeline_.place(static_cast<int>(b), true); });
      r_.alloc(s.master, numbered(b));
      if (plan_.from_meta) built(b, true);
      built(b, false);
      act([&] { pipeline_.place(static_cast<int>(b), false); });
    }
  }
  void start() {
    r_.alloc(workspace_);
    r_.alloc(gathered_);
    r_.alloc(tables_);
  }

  // ---- what the pipeline does

  template <class Do>
  void act(Do&& act) {
    act();
    for (const FsdpEvent& e : pipeline_.take()) {
      const BucketSites& s = buckets_[static_cast<std::size_t>(e.bucket)];
      using enum FsdpEvent::Kind;
      const bool pooled = e.kind == pooled_weights || e.kind == pooled_gradients;
      const SiteRef& of = e.kind == weights          ? s.weights
                          : e.kind == gradients      ? s.gradients
                          : e.kind == reduced        ? s.reduced
                          : e.kind == pooled_weights ? s.pooled[0]
                                                     : s.pooled[1];
      const Index at = pooled ? Index(e.number) : Index(e.bucket);
      if (e.made)
        r_.alloc(of, at);
      else
        r_.free(of, at);
    }
  }
  const std::vector<int>& of(std::int64_t layer, FsdpModule module) const {
    static const std::vector<int> kNone;
    const auto found = plan_.of.find({layer, module});
    return found == plan_.of.end() ? kNone : found->second;
  }
  std::vector<int> of_layer(std::int64_t layer) const {
    std::vector<int> out;
    for (std::size_t b = 0; b < plan_.buckets.size(); ++b)
      if (plan_.buckets[b].unit == layer) out.push_back(static_cast<int>(b));
    return out;
  }

  // ---- the passes

  /// body(unit, its number in the station, its number in the model).
  template <class Body>
  void each_layer(std::size_t s, bool backward, Body&& body) {
    const std::int64_t n = tape_.stations[s].count;
    std::int64_t before = 0;
    for (std::size_t k = 0; k < s; ++k) before += tape_.stations[k].place == StationPlace::layers ? tape_.stations[k].count : 0;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t at = backward ? n - 1 - i : i;
      body(at == 0 ? Unit::first : at == n - 1 ? Unit::last : Unit::inner, at, before + at);
    }
  }
  void forward(Index micro) {
    using enum FsdpModule;
    const auto asks = [&](FsdpModule module) {
      act([&] { pipeline_.gather(of(kOutsideLayers, module), FsdpPipeline::Ahead::forward); });
    };
    for (std::size_t s = 0; s < tape_.stations.size(); ++s) {
      const StationPlace place = tape_.stations[s].place;
      if (place == StationPlace::layers) {
        each_layer(s, false, [&](Unit u, std::int64_t at, std::int64_t layer) { forward_layer(s, u, Index(at), layer, micro); });
        continue;
      }
      if (place == StationPlace::embedding) {
        asks(embedding);
        asks(positions);
      }
      if (place == StationPlace::norm) asks(norm);
      if (place == StationPlace::head) asks(head);
      player_.play_all(s, false, micro);
    }
  }
  void forward_layer(std::size_t s, Unit u, Index at, std::int64_t layer, Index micro) {
    const std::vector<int> unit = of_layer(layer);
    act([&] { pipeline_.gather(unit, FsdpPipeline::Ahead::forward); });
    player_.play(s, false, u, at, micro);
    act([&] { pipeline_.release(unit, false); });
  }

  void backward(Index micro, bool last) {
    using enum FsdpModule;
    reduces_ =
        plan_.splits_gradients || plan_.strategy >= MegatronFsdpStrategy::optim_grads || (plan_.reduces_in_backward && last);
    for (std::size_t s = tape_.stations.size(); s-- > 0;) {
      const StationPlace place = tape_.stations[s].place;
      if (place == StationPlace::layers) {
        each_layer(s, true, [&](Unit u, std::int64_t at, std::int64_t layer) { backward_layer(s, u, Index(at), layer, micro); });
        continue;
      }
      if (place == StationPlace::inputs) {
        player_.play_all(s, true, micro);
        continue;
      }
      if (place == StationPlace::head) act([&] { pipeline_.begin_backward(); });
      play_with_gradients(s, Unit::first, Index(0), kOutsideLayers, micro, [] {});
      if (place == StationPlace::norm) complete(kOutsideLayers, norm);
      if (place == StationPlace::embedding) complete(kOutsideLayers, positions);
    }
    act([&] { pipeline_.end_backward(); });
  }
  void backward_layer(std::size_t s, Unit u, Index at, std::int64_t layer, Index micro) {
    const std::vector<int> unit = of_layer(layer);
    const bool again = stops_.of(s, u).computes_again;
    if (again) act([&] { pipeline_.gather(unit, FsdpPipeline::Ahead::none); });
    play_with_gradients(s, u, at, layer, micro, [&] {
      if (again) act([&] { pipeline_.release(unit, true); });
      act([&] { pipeline_.gather(unit, FsdpPipeline::Ahead::backward); });
    });
    act([&] { pipeline_.release(unit, false); });
  }
  /// A module's gradients that are no part of a tape's segment, or are all there.
  void complete(std::int64_t layer, FsdpModule module) {
    act([&] { pipeline_.add(of(layer, module)); });
    act([&] { pipeline_.reduce(of(layer, module), reduces_); });
  }
  /// The segment; `derive` where its own backward pass begins. A matrix's gradient is copied into its bucket, then it goes.
  template <class Derive>
  void play_with_gradients(std::size_t s, Unit u, Index at, std::int64_t layer, Index micro, Derive&& derive) {
    const Segment& segment = tape_.stations[s].segment(true, u);
    const FsdpStops& stops = stops_.of(s, u);
    std::size_t from = 0;
    const auto play_to = [&](std::size_t to) {
      if (to > from) player_.play_events(segment, from, to, at, micro);
      from = to;
    };
    play_to(stops.derives);
    derive();
    for (const auto& [event, module] : stops.gradients) {
      play_to(event);
      act([&] { pipeline_.add(of(layer, module)); });
      play_to(event + 1);
      act([&] { pipeline_.reduce(of(layer, module), reduces_); });
    }
    play_to(segment.events.size());
  }

  R& r_;
  const MegatronStage& stage_;
  const MegatronFsdpPlan& plan_;
  EngineSites<R> sites_;
  const Tape& tape_;
  Player<R> player_;
  FsdpPipeline pipeline_;
  FsdpStopsOfTape stops_;
  std::map<std::pair<std::string, Bytes>, SiteRef> known_;  ///< only when a program is written
  std::vector<BucketSites> buckets_;
  SiteRef gradients_, workspace_, gathered_, tables_;
  bool has_states_ = false, has_wide_gradients_ = false, started_ = false, reduces_ = false;
};

}  // namespace oomplan
