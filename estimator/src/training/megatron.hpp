// A rank of Megatron-core: flat buffers, the pipeline's schedule, and the optimizer's step.
//
// megatron-core 0.16.1, megatron/core/pipeline_parallel/schedules.py. What the schedule's names hold is written as names here: a
// Held is a tensor that lives as long as somebody has it.
#pragma once
#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <oomplan/program.hpp>

#include "training/engine_sites.hpp"
#include "training/megatron_held.hpp"
#include "training/megatron_plan.hpp"
#include "training/megatron_schedule.hpp"
#include "training/player.hpp"

namespace oomplan {

template <class R>
class MegatronEngine {
 public:
  using Told = std::function<void(bool backward)>;  ///< of every pass as it begins

  /// `role` stands before the names of sites. REQUIRES: `r` and `stage` outlive this.
  MegatronEngine(R& r, const MegatronStage& stage, std::string_view role) : r_(r), stage_(stage), sites_(r, role) {
    const auto play = [&](auto& players, const auto& tapes, const TokenCounts& counts, std::int64_t chunks, const char* what) {
      for (std::size_t c = 0; c < tapes.size(); ++c) {
        const std::string name = sites_.prefix() + (tapes.size() > 1 ? "chunk" + std::to_string(c) : "stage") + what;
        players.push_back(std::make_unique<Player<R>>(r, *tapes[c], counts, chunks, name));
      }
    };
    play(players_, stage.chunks, stage.counts, stage.head_chunks, "");
    play(forward_players_, stage.forward_chunks, stage.alone ? stage.alone->counts : stage.counts,
         stage.alone ? stage.alone->head_chunks : stage.head_chunks, ".no_grad");
    chunks_.resize(stage.receives.size());
    const auto resident = [&](std::string_view name, Bytes bytes, Category category) {
      return sites_.site("", name, bytes, category, Holder::resident);
    };
    weights_ = in_parts("parameter_buffer", stage.weights, stage.weight_blocks, {DType::bf16}, Category::weights);
    in_8_bits_ =
        in_parts("parameters_in_8_bits", stage.weights_in_8_bits, stage.blocks_in_8_bits, {DType::fp8}, Category::weights);
    gradients_ =
        in_parts("gradient_buffer", stage.gradients, stage.gradient_blocks, {stage.gradient_format}, Category::gradients);
    masters_ = in_parts("masters", stage.masters, stage.pieces, stage.master_formats, Category::optimizer);
    wide_gradients_ =
        in_parts("fp32_gradient_shards", stage.wide_gradients, stage.pieces, stage.wide_formats, Category::gradients);
    states_ = in_parts("optimizer_states", stage.states, stage.pieces, stage.state_formats, Category::optimizer);
    averaged_ = resident("averaged_gradients", stage.averaged, Category::gradients);
    passing_ = resident("parameter_on_the_way", stage.host.passing, Category::optimizer);
    copies_ = resident("copies_of_whole_parameters", stage.host.device_copies, Category::optimizer);
    host_masters_ = on_host("masters_on_host", stage.host.masters);
    host_states_ = on_host("optimizer_states_on_host", stage.host.states);
    host_copies_ = on_host("whole_parameters_on_host", stage.host.copies);
    host_gradients_ = sites_.host_site("", "gradients_on_host", stage.host.gradients);
    host_weights_ = sites_.host_site("", "weights_on_host", stage.host.weights);
    const bool naps = stage.pauses;
    const Bytes buffers = stage.pauses_whole && !stage.pauses_buffers ? 0 : stage.weights + stage.gradients;
    paused_ = on_host("paused_on_host", naps ? buffers + stage.masters : 0);
    paused_states_ = on_host("paused_states_on_host", naps ? stage.states : 0);
    parked_weights_ = on_host("parameters_on_host", stage.parks_parameters ? stage.weights : 0);
    parked_masters_ = on_host("masters_between_steps", stage.parks_optimizer ? stage.masters : 0);
    parked_states_ = on_host("states_between_steps", stage.parks_optimizer ? stage.states : 0);
    widened_ = resident("fp32_states_of_the_step", stage.widened_states, Category::optimizer);
    denominators_ = resident("denominators_of_the_step", stage.denominators, Category::optimizer);
    workspace_ = resident("te_workspaces", stage.workspace * stage.workspaces, Category::workspace);
    routing_ = resident("routing_of_the_last_tokens", stage.routing, Category::buffers);
    for (const LastRouting& kept : stage.permutations) routings_.push_back(routing_sites(kept, kept.behind, resident));
    forward_routings_ = routings_;
    for (std::size_t c = 0; c < routings_.size(); ++c) {
      const LastRouting& kept = stage.alone ? stage.alone->permutations[c] : stage.permutations[c];
      if (stage.alone || kept.behind_passes != kept.behind)
        forward_routings_[c] = routing_sites(kept, kept.behind_passes, resident);
    }
    gathered_ = resident("output_layer_gather_buffer", stage.gathered, Category::communication);
    tables_ = resident("rotary_tables", stage.tables, Category::buffers);
    batch_ = resident("most_likely_tokens_of_the_rollout", stage.batch, Category::inputs);
    replaced_head_ = resident("output_layer_of_the_checkpoint", stage.replaced_head, Category::weights);
    placeholders_ = resident("placeholder_gradients", stage.placeholders, Category::gradients);
    deferred_ = sites_.site("", "deferred_logits_gradient", stage.deferred, Category::gradients, Holder::autograd);
    input_ = sites_.site("", "stage_input", stage.hidden, Category::communication, Holder::communication);
    forward_input_ = stage.alone ? sites_.site("", "stage_input_of_log_probs", stage.alone->hidden, Category::communication,
                                               Holder::communication)
                                 : input_;
    input_gradient_ = sites_.site("", "stage_input_gradient", stage.hidden, Category::gradients, Holder::autograd);
    output_ = sites_.site("", "stage_output", stage.hidden, Category::activations, Holder::local);
    output_gradient_ = sites_.site("", "stage_output_gradient", stage.hidden, Category::gradients, Holder::communication);
  }
  MegatronEngine(const MegatronEngine&) = delete;
  MegatronEngine& operator=(const MegatronEngine&) = delete;
  ~MegatronEngine() { held_.close(); }

  void load() {
    r_.alloc(replaced_head_);
    make(weights_);
    if (!stage_.copies_in_8_bits) make(in_8_bits_);
    make(gradients_);
    // with the optimizer on the host it is first made of whole parameters, and these copies go when Python's collector finds them
    r_.alloc(copies_);
    r_.alloc(host_copies_);
    make(masters_);
    r_.alloc(host_masters_);
    r_.free(copies_);
    r_.free(host_copies_);
    r_.alloc(host_weights_);
    r_.free(replaced_head_);
  }
  /// All micro-batches of a step. `micro_batches`: how many of them are played (see played_micro_batches).
  void passes(std::int64_t micro_batches, const Told& told) {
    hold_batch();
    told_ = &told;
    deferring_ = 0;
    micro_batches_ = micro_batches;
    if (!stage_.keeps_wide_gradients && std::exchange(has_wide_gradients_, false)) drop(wide_gradients_);
    if (stage_.stages == 1)
      one_after_another();
    else if (stage_.chunks.size() == 1)
      one_forward_one_backward();
    else
      interleaved();
    told_ = nullptr;
    while (waiting_ > 0) r_.free(deferred_, Index(--waiting_));
    waiting_inputs_.clear();
  }
  /// What lives from step to step goes to the host, and comes back.
  void pause() {
    for (const OfParts* tensors : residents()) drop(*tensors);
    if (stage_.pauses_whole) return pause_the_rest();
    r_.alloc(paused_);
    if (has_states_) r_.alloc(paused_states_);
  }
  void resume() {
    if (stage_.pauses_whole) resume_the_rest();
    for (const OfParts* tensors : residents()) make(*tensors);
    if (stage_.pauses_whole) return;
    if (has_states_) r_.free(paused_states_);
    r_.free(paused_);
  }
  /// verl's offload_megatron_model_to_cpu and offload_megatron_optimizer (verl/utils/megatron_utils.py, 0.7): parameters go to
  /// pinned memory, the flat gradient buffer goes without a copy, masters and states to the host.
  void park() {
    if (stage_.parks_parameters && !std::exchange(weights_parked_, true)) {
      drop(weights_);
      r_.alloc(parked_weights_);
      if (!std::exchange(gradients_gone_, true)) drop(gradients_);
    }
    if (!stage_.parks_optimizer || std::exchange(optimizer_parked_, true)) return;
    drop(masters_);
    r_.alloc(parked_masters_);
    if (!has_states_) return;
    drop(states_);
    r_.alloc(parked_states_);
    states_parked_ = true;
  }
  /// For a forward pass alone the parameters come back; for a step all do.
  void unpark(bool trains) {
    if (std::exchange(weights_parked_, false)) {
      make(weights_);
      r_.free(parked_weights_);
    }
    if (!trains) return;
    if (std::exchange(gradients_gone_, false)) make(gradients_);
    if (!std::exchange(optimizer_parked_, false)) return;
    make(masters_);
    r_.free(parked_masters_);
    if (!std::exchange(states_parked_, false)) return;
    make(states_);
    r_.free(parked_states_);
  }
  /// forward_step for every micro-batch with forward_only: nothing waits for a backward pass, and what the stage hands on goes
  /// when the next one takes its name.
  void forward_passes(std::int64_t micro_batches) {
    if (!started_) start();
    hold_batch();
    for (std::int64_t m = 0; m < std::min<std::int64_t>(2, micro_batches); ++m)
      for (std::size_t c = 0; c < forward_players_.size(); ++c) {
        chunks_[c].decoder_input = received(forward_input_, stage_.receives[c]);
        forget_behind(c);
        const auto& stations = stage_.forward_chunks[c]->stations;
        const std::vector<std::size_t> of_layers = stations_of_layers(stations);
        const bool alike = units_alike(c, of_layers);
        for (std::size_t s = 0, layers = 0; s < stations.size(); ++s) {
          if (stations[s].place == StationPlace::head) keep_behind(c, forward_routings_[c]);
          if (stations[s].place == StationPlace::layers && alike)
            pass_layers(c, s, layers++, m);
          else
            forward_players_[c]->play_all(s, false, Index(m));
          if (!alike && s == of_layers.back()) change_routing(c);
        }
        chunks_[c].maps = &forward_routings_[c];
        chunks_[c].keeps_leaves = false;
      }
  }
  /// Masters and states are there for ever; the step works in place on the flat buffers. Gradients that are not fp32 are copied.
  void optimizer_step() {
    r_.alloc(averaged_);
    r_.free(averaged_);
    if (!std::exchange(has_wide_gradients_, true)) make(wide_gradients_);
    if (!std::exchange(has_states_, true)) {
      make(states_);
      r_.alloc(host_states_);
      r_.alloc(host_gradients_);
    }
    r_.alloc(widened_);
    r_.free(widened_);
    r_.alloc(denominators_);
    r_.free(denominators_);
    r_.alloc(passing_);
    r_.free(passing_);
    if (std::exchange(holds_batch_, false)) r_.free(batch_);
  }

 private:
  static constexpr std::string_view kDispatch = "permutation";  ///< what a dispatcher makes as it takes new tokens

  /// Buffers, or tensors of every part of the share. What is written out has them one by one, because the allocator hands some
  /// blocks out whole; a sum needs no more than their bytes.
  struct OfParts {
    std::vector<std::pair<SiteRef, std::int64_t>> sites;  ///< with how many of each
  };
  OfParts in_parts(std::string_view name, Bytes all, const std::vector<MegatronPiece>& pieces, const PieceFormats& formats,
                   Category category) {
    OfParts out;
    if (!R::kWrites || pieces.empty()) {
      out.sites.emplace_back(sites_.site("", name, all, category, Holder::resident), 1);
      return out;
    }
    for (const MegatronPiece& piece : pieces)
      for (const DType format : formats)
        out.sites.emplace_back(sites_.site("", name, bytes_of(piece.elements, format), category, Holder::resident), piece.count);
    return out;
  }
  void make(const OfParts& tensors) {
    for (const auto& [site, count] : tensors.sites)
      for (std::int64_t i = 0; i < count; ++i) r_.alloc(site, Index(i));
  }
  /// All else that lives between steps. torch_memory_saver keeps a copy on the host once it has made it (csrc/core.cpp: pause,
  /// resume, of fzyzcjy/torch_memory_saver 106fe07 and zhuzilin/torch_memory_saver 6c09e81).
  void pause_the_rest() {
    each_other([&](const SiteRef& site, Index a, Index b) { r_.free(site, a, b); });
    if (!std::exchange(was_paused_, true)) r_.alloc(paused_);
    if (has_states_ && !std::exchange(states_were_paused_, true)) r_.alloc(paused_states_);
    paused_rest_ = on_host("rest_on_host", rest_bytes());
    r_.alloc(paused_rest_);
  }
  void resume_the_rest() {
    r_.free(paused_rest_);
    each_other([&](const SiteRef& site, Index a, Index b) { r_.alloc(site, a, b); });
  }
  /// What each_other() goes through, of all units.
  Bytes rest_bytes() const {
    Bytes sum = has_placeholders_ ? placeholders_.bytes : 0;
    if (started_) sum += workspace_.bytes + gathered_.bytes + tables_.bytes + routing_.bytes;
    held_.each([&](const SiteRef& site, Index) { sum += site.bytes; });
    for (std::size_t c = 0; c < chunks_.size(); ++c) {
      const Routing* maps = chunks_[c].maps;
      if (chunks_[c].behind != nullptr) sum += chunks_[c].behind->bytes;
      for (std::size_t s = 0; s < stage_.permutations[c].units.size(); ++s) {
        const OfStation& one = routings_[c].stations[s];
        Bytes unit = maps != nullptr && one.kept ? kept_of(c, one)->maps.bytes : 0;
        if (chunks_[c].keeps_leaves && one.again) unit += one.leaf.bytes + one.gradient.bytes;
        if (started_) unit += one.replaced.bytes;
        sum += unit * stage_.permutations[c].units[s];
      }
    }
    return sum;
  }
  /// Of what a step leaves, all but residents().
  template <class Act>
  void each_other(Act&& act) {
    if (started_)
      for (const SiteRef& site : {workspace_, gathered_, tables_, routing_}) act(site, Index(), Index());
    if (has_placeholders_) act(placeholders_, Index(), Index());
    held_.each([&](const SiteRef& site, Index number) { act(site, number, Index()); });
    for (std::size_t c = 0; c < chunks_.size(); ++c) {
      const Routing* maps = chunks_[c].maps;
      const bool leaves = chunks_[c].keeps_leaves;
      if (chunks_[c].behind != nullptr) act(*chunks_[c].behind, Index(), Index());
      each_routing(c, [&](const OfStation& one, Unit unit, Index i) {
        if (started_ && one.replaces) act(one.replaced, i, Index());
        if (maps != nullptr && one.kept) act(kept_of(c, one)->maps, i, Index());
        if (!leaves || !one.again) return;
        if (!takes_input(c, one, unit)) act(one.leaf, i, Index());
        act(one.gradient, i, Index());
      });
    }
  }

  std::vector<const OfParts*> residents() const {
    std::vector<const OfParts*> out{&weights_, &gradients_, &masters_};
    if (has_states_) out.push_back(&states_);
    if (has_wide_gradients_) out.push_back(&wide_gradients_);
    const bool in_8_bits = stage_.pauses_whole && (started_ || !stage_.copies_in_8_bits);
    if (in_8_bits) out.push_back(&in_8_bits_);
    return out;
  }
  void hold_batch() {
    if (!std::exchange(holds_batch_, true)) r_.alloc(batch_);
  }
  void drop(const OfParts& tensors) {
    for (const auto& [site, count] : tensors.sites)
      for (std::int64_t i = 0; i < count; ++i) r_.free(site, Index(i));
  }

  using Held = typename HeldTensors<R>::Held;
  Held make(SiteRef site) { return held_.make(site); }
  /// What recv_forward and recv_backward give; nothing where there is no neighbour.
  Held received(SiteRef site, bool comes) { return comes ? make(site) : nullptr; }

  /// A chunk's LastRouting, by its tape's stations; empty where there is nothing.
  struct OfStation {
    bool kept = false, again = false, replaces = false;
    SiteRef maps, leaf, gradient, replaced;
  };
  struct Routing {
    std::vector<OfStation> stations;
    SiteRef behind;
  };
  struct Chunk {
    Held decoder_input;  ///< TransformerBlock.input_tensor: the last one stays
    std::deque<Held> inputs, output_gradients;
    typename HeldTensors<R>::Storage first_leaf;  ///< of the first layer's last recomputation: the input that the stage received
    std::int64_t released = 0;                    ///< inputs that are gone
    std::int64_t in_flight = 0;
    const Routing* maps = nullptr;    ///< that its dispatchers keep: of the pass before
    const SiteRef* behind = nullptr;  ///< what its block of multi-token prediction has left
    bool keeps_leaves = false;
  };

  template <class MakesSite>
  Routing routing_sites(const LastRouting& kept, Bytes behind, const MakesSite& resident) const {
    Routing out;
    for (std::size_t i = 0; i < kept.maps.size(); ++i) {
      const Bytes leaves = stage_.hidden * kept.leaves[i];
      out.stations.push_back({kept.maps[i] > 0, leaves > 0, kept.replaced[i] > 0,
                              resident("permutation_of_the_last_tokens", kept.maps[i], Category::buffers),
                              resident("leaf_of_the_last_recomputation", leaves, Category::buffers),
                              resident("gradient_of_the_last_recomputation", leaves, Category::buffers),
                              resident("maps_of_the_last_recomputation", kept.replaced[i], Category::buffers)});
    }
    out.behind = resident("routing_of_the_last_predicted_tokens", behind, Category::buffers);
    return out;
  }

  /// forward_step: the block takes the new input before it computes.
  void forward(std::size_t chunk, const Held& input, std::int64_t micro) {
    (*told_)(false);
    chunks_[chunk].decoder_input = input;
    if (!started_) start();
    ++chunks_[chunk].in_flight;
    const auto& stations = stage_.chunks[chunk]->stations;
    for (std::size_t s = 0, layers = 0; s < stations.size(); ++s) {
      if (stations[s].place == StationPlace::layers)
        run_layers(chunk, s, routings_[chunk].stations[layers++], micro);
      else if (stations[s].place == StationPlace::norm && chunks_[chunk].behind != nullptr)
        players_[chunk]->play_around(s, false, Unit::first, Index(0), Index(micro), kDispatch, [&] { forget_behind(chunk); });
      else
        players_[chunk]->play_all(s, false, Index(micro));
    }
    chunks_[chunk].maps = nullptr;
    chunks_[chunk].keeps_leaves = false;
  }
  /// backward_step: the gradient of what the chunk received stays with it. The pass itself allocates the gradient that came in
  /// and what it gives: here they only live on.
  Held backward(std::size_t chunk, const Held& input, std::int64_t micro) {
    (*told_)(true);
    const auto& stations = stage_.chunks[chunk]->stations;
    std::size_t layers = routings_[chunk].stations.size();
    std::vector<std::pair<SiteRef, Index>> shared;  // the gradient that the unit above has left is the one that comes in
    for (std::size_t s = stations.size(); s-- > 0;) {
      if (stations[s].place == StationPlace::layers)
        run_layers_back(chunk, s, routings_[chunk].stations[--layers], micro, input, shared);
      else if (stations[s].place == StationPlace::norm && stage_.permutations[chunk].behind_again)
        run_behind_again(chunk, s, micro);
      else
        players_[chunk]->play_all(s, true, Index(micro));
      if (stations[s].place == StationPlace::head && chunk + 1 == chunks_.size()) defer(input);
    }
    for (const auto& [site, at] : shared) r_.alloc(site, at);
    chunks_[chunk].keeps_leaves = true;
    if (--chunks_[chunk].in_flight == 0) keep_maps(chunk, routings_[chunk]);  // the dispatchers have the last one still
    if (!has_placeholders_) r_.alloc(placeholders_);
    has_placeholders_ = true;
    if (input == nullptr) return nullptr;
    input->gradient = make(input_gradient_);
    return input->gradient;
  }
  /// A block of multi-token prediction that is computed again leaves the new graph in place of the last one.
  void run_behind_again(std::size_t chunk, std::size_t station, std::int64_t micro) {
    players_[chunk]->play_around(station, true, Unit::first, Index(0), Index(micro), kDispatch, [&] { forget_behind(chunk); });
    keep_behind(chunk, routings_[chunk]);
  }
  void keep_behind(std::size_t chunk, const Routing& routing) {
    chunks_[chunk].behind = &routing.behind;
    r_.alloc(routing.behind);
  }
  void forget_behind(std::size_t chunk) {
    if (const SiteRef* left = std::exchange(chunks_[chunk].behind, nullptr)) r_.free(*left);
  }
  /// Every layer's dispatcher takes its new tokens in place of the last ones.
  void run_layers(std::size_t chunk, std::size_t station, const OfStation& last, std::int64_t micro) {
    const bool leaves = last.again && chunks_[chunk].keeps_leaves;
    const OfStation* before = last.kept ? kept_of(chunk, last) : nullptr;
    if (before == nullptr && !leaves && !last.replaces) return players_[chunk]->play_all(station, false, Index(micro));
    players_[chunk]->each_unit(station, false, [&](Unit unit, Index at) {
      players_[chunk]->play_around(station, false, unit, at, Index(micro), kDispatch, [&] {
        if (before != nullptr) r_.free(before->maps, at);
        if (leaves) forget_leaf(chunk, last, takes_input(chunk, last, unit), at);
        if (last.replaces) r_.free(last.replaced, at);
      });
      if (last.replaces) r_.alloc(last.replaced, at);
    });
  }
  static std::vector<std::size_t> stations_of_layers(const std::vector<Station>& stations) {
    std::vector<std::size_t> out;
    for (std::size_t s = 0; s < stations.size(); ++s)
      if (stations[s].place == StationPlace::layers) out.push_back(s);
    return out;
  }
  /// Layers that training computes again together are one unit there, and several in a pass without gradients.
  bool units_alike(std::size_t chunk, const std::vector<std::size_t>& of_layers) const {
    const std::vector<std::int64_t>& units = stage_.permutations[chunk].units;
    if (units.size() != of_layers.size()) return false;
    for (std::size_t i = 0; i < units.size(); ++i)
      if (units[i] != forward_players_[chunk]->count(of_layers[i])) return false;
    return true;
  }
  /// Then what dispatchers and recomputations of the pass before have left goes behind the last layer: a unit's part too late.
  void change_routing(std::size_t chunk) {
    for (std::size_t s = 0; s < stage_.permutations[chunk].units.size(); ++s) {
      routing_of(chunk, s, [&](const OfStation& one, Unit unit, Index i) {
        if (one.kept && chunks_[chunk].maps != nullptr) r_.free(kept_of(chunk, one)->maps, i);
        if (one.again && chunks_[chunk].keeps_leaves) forget_leaf(chunk, one, takes_input(chunk, one, unit), i);
      });
    }
    for (std::size_t s = 0; s < stage_.permutations[chunk].units.size(); ++s)
      routing_of(chunk, s, [&](const OfStation& one, Unit, Index i) {
        const auto number = static_cast<std::size_t>(&one - routings_[chunk].stations.data());
        if (forward_routings_[chunk].stations[number].kept) r_.alloc(forward_routings_[chunk].stations[number].maps, i);
      });
  }
  /// The same without gradients: what a dispatcher has made it keeps.
  void pass_layers(std::size_t chunk, std::size_t station, std::size_t number, std::int64_t micro) {
    const OfStation& last = routings_[chunk].stations[number];
    const OfStation& next = forward_routings_[chunk].stations[number];
    const bool leaves = last.again && chunks_[chunk].keeps_leaves;
    const OfStation* before = last.kept ? kept_of(chunk, last) : nullptr;
    if (before == nullptr && !leaves && !next.kept && !last.replaces)
      return forward_players_[chunk]->play_all(station, false, Index(micro));
    forward_players_[chunk]->each_unit(station, false, [&](Unit unit, Index at) {
      forward_players_[chunk]->play_around(station, false, unit, at, Index(micro), kDispatch, [&] {
        if (before != nullptr) r_.free(before->maps, at);
        if (leaves) forget_leaf(chunk, last, takes_input(chunk, last, unit), at);
        if (last.replaces) r_.free(last.replaced, at);
      });
      if (last.replaces) r_.alloc(last.replaced, at);
      if (next.kept) r_.alloc(next.maps, at);
    });
  }
  /// What the dispatchers of a station keep of the pass before; null: nothing.
  const OfStation* kept_of(std::size_t chunk, const OfStation& of) const {
    if (chunks_[chunk].maps == nullptr) return nullptr;
    return &chunks_[chunk].maps->stations[static_cast<std::size_t>(&of - routings_[chunk].stations.data())];
  }
  /// Whether a layer's checkpoint keeps what the stage has received: the leaf of its recomputation is no tensor of its own.
  bool takes_input(std::size_t chunk, const OfStation& of, Unit unit) const {
    return unit == Unit::first && &of == &routings_[chunk].stations.front() && stage_.receives[chunk] &&
           stage_.permutations[chunk].whole_layers;
  }
  /// So it does when a checkpoint runs the layer again, whose input and gradient stay then. Of whole layers the gradient is at
  /// first what the layer in front is given: `shared`, until that one has run.
  void run_layers_back(std::size_t chunk, std::size_t station, const OfStation& last, std::int64_t micro, const Held& input,
                       std::vector<std::pair<SiteRef, Index>>& shared) {
    const auto settle = [&] {
      for (const auto& [site, at] : shared) r_.alloc(site, at);
      shared.clear();
    };
    if (!last.again) {
      players_[chunk]->play_all(station, true, Index(micro));
      return settle();
    }
    const bool leaves = chunks_[chunk].keeps_leaves, whole = stage_.permutations[chunk].whole_layers;
    const std::int64_t top = players_[chunk]->count(station) - 1;
    players_[chunk]->each_unit(station, true, [&](Unit unit, Index at) {
      players_[chunk]->play_around(station, true, unit, at, Index(micro), kDispatch, [&] {
        if (leaves) forget_leaf(chunk, last, takes_input(chunk, last, unit), at);
        if (last.replaces) r_.free(last.replaced, at);
      });
      if (last.replaces) r_.alloc(last.replaced, at);
      if (unit == Unit::last || top == 0)
        settle();
      else if (whole)
        r_.alloc(last.gradient, at + 1);
      if (takes_input(chunk, last, unit))
        chunks_[chunk].first_leaf = input->storage;
      else
        r_.alloc(last.leaf, at);
      if (!whole) r_.alloc(last.gradient, at);
    });
    if (whole) shared.emplace_back(last.gradient, Index(0));
  }
  void forget_leaf(std::size_t chunk, const OfStation& last, bool is_input, Index at) {
    if (is_input)
      chunks_[chunk].first_leaf.reset();
    else
      r_.free(last.leaf, at);
    r_.free(last.gradient, at);
  }
  /// of all units of all stations
  template <class Act>
  void each_routing(std::size_t chunk, const Act& act) {
    for (std::size_t s = 0; s < stage_.permutations[chunk].units.size(); ++s) routing_of(chunk, s, act);
  }
  template <class Act>
  void routing_of(std::size_t chunk, std::size_t station, const Act& act) {
    const OfStation& one = routings_[chunk].stations[station];
    if (!one.kept && !one.again && !one.replaces) return;
    act(one, Unit::first, Index(0));
    r_.repeat(stage_.permutations[chunk].units[station] - 1, [&](Index i) { act(one, Unit::inner, i); }, Direction::forward, 1);
  }
  void keep_maps_of(std::size_t chunk, std::size_t station) {
    routing_of(chunk, station, [&](const OfStation& one, Unit, Index i) {
      if (one.kept) r_.alloc(kept_of(chunk, one)->maps, i);
    });
  }
  void keep_maps(std::size_t chunk, const Routing& routing) {
    chunks_[chunk].maps = &routing;
    for (std::size_t s = 0; s < stage_.permutations[chunk].units.size(); ++s) keep_maps_of(chunk, s);
    if (chunks_[chunk].behind == nullptr) keep_behind(chunk, routing);
  }
  /// The output layer's gradient of this micro-batch waits for the end of the passes, and its input with the graph that made it,
  /// whose leaf is what the stage has received. Those of micro-batches that are not played come with the first one, so that the
  /// last pass finds all of them.
  void defer(const Held& input) {
    // passes that find all of them; of the second one the schedule names nothing that waits
    const std::int64_t behind = std::min<std::int64_t>(2, stage_.micro_batches - stage_.deferrals);
    const std::int64_t played = std::min(stage_.deferrals, micro_batches_ - behind);
    if (deferring_ == played) return;
    waiting_inputs_.push_back(input);
    r_.alloc(deferred_, Index(waiting_++));
    for (std::int64_t n = deferring_++ > 0 ? 0 : stage_.deferrals - played; n > 0; --n) {
      r_.alloc(deferred_, Index(waiting_++));
      waiting_inputs_.push_back(make(input_));
      waiting_inputs_.back()->gradient = make(input_gradient_);
    }
  }
  SiteRef on_host(std::string_view name, Bytes bytes) {
    if constexpr (R::kWrites) {
      Site row;
      row.name = sites_.named("", name);
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
  void start() {
    started_ = true;
    if (stage_.copies_in_8_bits) make(in_8_bits_);
    r_.alloc(workspace_);
    r_.alloc(gathered_);
    r_.alloc(tables_);
    r_.alloc(routing_);
    for (std::size_t c = 0; c < chunks_.size(); ++c)
      each_routing(c, [&](const OfStation& one, Unit, Index i) {
        if (one.replaces) r_.alloc(one.replaced, i);
      });
  }

  void one_after_another() {
    for (std::int64_t m = 0; m < micro_batches_; ++m) {
      forward(0, nullptr, m);
      backward(0, nullptr, m);
    }
  }
  void one_forward_one_backward();
  void interleaved();
  struct Neighbour {
    bool sends = false;
    std::size_t chunk = 0;  ///< that it sends for
  };
  Neighbour next_from_neighbour(const std::vector<VirtualBatch>& order, std::int64_t number, bool forward) const;

  R& r_;
  const MegatronStage& stage_;
  EngineSites<R> sites_;
  HeldTensors<R> held_{r_};
  std::vector<std::unique_ptr<Player<R>>> players_, forward_players_;
  std::vector<Chunk> chunks_;
  std::vector<Held> waiting_inputs_;
  OfParts weights_, in_8_bits_, gradients_, masters_, states_, wide_gradients_;
  SiteRef widened_, denominators_, workspace_, gathered_, tables_, placeholders_, batch_, replaced_head_;
  SiteRef host_weights_, paused_, paused_states_, paused_rest_, parked_weights_, parked_masters_, parked_states_;
  bool was_paused_ = false, states_were_paused_ = false;
  bool weights_parked_ = false, gradients_gone_ = false, optimizer_parked_ = false, states_parked_ = false;
  SiteRef routing_, averaged_, passing_, copies_, host_masters_, host_states_, host_copies_, host_gradients_;
  std::vector<Routing> routings_, forward_routings_;
  SiteRef input_, forward_input_, input_gradient_, output_, output_gradient_, deferred_;
  const Told* told_ = nullptr;
  std::int64_t micro_batches_ = 1, waiting_ = 0, deferring_ = 0;
  bool has_states_ = false, has_wide_gradients_ = false, has_placeholders_ = false, started_ = false, holds_batch_ = false;
};

/// forward_backward_pipelining_without_interleaving. A gradient that comes in is allocated by the pass that it starts; from the
/// end of that pass on it is held here, until the name gets the next one.
template <class R>
void MegatronEngine<R>::one_forward_one_backward() {
  const std::int64_t warmup = std::min(stage_.stages - stage_.stage - 1, micro_batches_);
  const bool receives = stage_.receives[0], hands_on = stage_.hands_on[0];
  std::deque<Held>& inputs = chunks_[0].inputs;
  Held input, input_gradient, output_gradient;
  Held output;           ///< of the last backward pass, where outputs are not deallocated: a name until the next one
  Held input_of_output;  ///< the output of the last backward pass is still a name: its graph's leaf is the stage's input
  std::int64_t back = 0;
  for (std::int64_t m = 0; m < warmup; ++m) {
    input = received(input_, receives);
    forward(0, input, m);
    inputs.push_back(input);
  }
  const auto take_back = [&] {
    input = std::move(inputs.front());
    inputs.pop_front();
    output.reset();
    input_of_output = input;
    output_gradient.reset();
    Held gradient = backward(0, input, back++);  // the gradient of the pass before is a name until this one returns
    input_gradient = std::move(gradient);
    output_gradient = received(output_gradient_, hands_on);
    output = received(output_, hands_on && !stage_.deallocates);
  };
  if (warmup < micro_batches_) input = received(input_, receives);
  for (std::int64_t m = warmup; m < micro_batches_; ++m) {
    forward(0, input, m);
    output.reset();
    inputs.push_back(input);
    take_back();
    if (m + 1 < micro_batches_) input = received(input_, receives);
  }
  input.reset();
  while (!inputs.empty()) take_back();
}

/// recv_tensor_from_previous_stage: what comes while virtual micro-batch `number` is sent, and for which chunk.
template <class R>
typename MegatronEngine<R>::Neighbour MegatronEngine<R>::next_from_neighbour(const std::vector<VirtualBatch>& order,
                                                                             std::int64_t number, bool forward) const {
  const auto chunks = static_cast<std::int64_t>(stage_.chunks.size());
  const auto chunk_of = [&](std::int64_t k) {
    const std::int64_t c = order[static_cast<std::size_t>(std::min<std::int64_t>(k, std::ssize(order) - 1))].chunk;
    return forward ? c : chunks - 1 - c;
  };
  const bool leads = stage_.stage == (forward ? 0 : stage_.stages - 1);
  if (!leads) return {true, static_cast<std::size_t>(chunk_of(number + 1))};
  const bool early = number < stage_.stages - 1;
  const std::int64_t next = early ? chunk_of(number + 1) : chunk_of(number - (stage_.stages - 1));
  const bool sends = !early && next != (forward ? chunks - 1 : 0);
  return {sends, static_cast<std::size_t>(std::clamp<std::int64_t>(next + (forward ? 1 : -1), 0, chunks - 1))};
}

/// forward_backward_pipelining_with_interleaving with overlap_p2p_comm, its default: what the next forward pass needs is received
/// in front of the backward pass, whose own output is freed behind it. Its names, as it has them:
///   input: what the last warm-up pass received, and with it its gradient, until the function returns;
///   output: the last forward pass's, whose graph ends in its input;
///   inputs, gradients (fwd_recv_buffer, bwd_recv_buffer): what was received from then on, on the stage where the other end of
///   the pipeline sends to it as many as a group has beyond the stages, elsewhere one that goes at once.
template <class R>
void MegatronEngine<R>::interleaved() {
  const auto chunks = static_cast<std::int64_t>(stage_.chunks.size());
  const std::vector<VirtualBatch> order = interleaved_order(micro_batches_, chunks, stage_.group);
  const std::int64_t total = std::ssize(order);
  const std::int64_t warmup = std::min(total, 2 * (stage_.stages - stage_.stage - 1) + (chunks - 1) * stage_.group);
  const auto beyond = static_cast<std::size_t>(stage_.group - stage_.stages + 1);
  std::vector<Held> inputs(stage_.stage == 0 ? beyond : 1), gradients(stage_.stage == stage_.stages - 1 ? beyond : 1);
  Held input, input_of_output, output_gradient, input_gradient, output;
  const auto run_forward = [&](std::int64_t k) {
    const VirtualBatch at = order[static_cast<std::size_t>(k)];
    const auto c = static_cast<std::size_t>(at.chunk);
    Chunk& chunk = chunks_[c];
    Held taken = stage_.receives[c] ? chunk.inputs[static_cast<std::size_t>(at.micro - chunk.released)] : nullptr;
    forward(c, taken, at.micro);
    if (stage_.hands_on[c] && stage_.deallocates) output = make(output_);
    return stage_.hands_on[c] ? taken : nullptr;  // a loss is no name
  };
  const auto run_backward = [&](std::int64_t k) {
    const VirtualBatch at = order[static_cast<std::size_t>(k)];
    const auto c = static_cast<std::size_t>(chunks - 1 - at.chunk);
    Chunk& chunk = chunks_[c];
    Held given;
    if (stage_.receives[c]) {
      given = std::move(chunk.inputs.front());
      chunk.inputs.pop_front();
    }
    ++chunk.released;
    Held* slot = nullptr;
    if (stage_.hands_on[c]) {  // while the pass runs the gradient belongs to it
      const Held& taken = chunk.output_gradients.front();
      if (output_gradient == taken) output_gradient.reset();
      const auto found = std::find(gradients.begin(), gradients.end(), taken);
      if (found != gradients.end()) slot = &*found;
      if (slot != nullptr) slot->reset();
      chunk.output_gradients.pop_front();
    }
    Held gradient = backward(c, given, at.micro);
    input_gradient = std::move(gradient);
    if (slot != nullptr) *slot = make(output_gradient_);
  };
  const auto receive_gradient = [&](const Neighbour& from) {
    Held out = received(output_gradient_, from.sends);
    if (out) chunks_[from.chunk].output_gradients.push_back(out);
    return out;
  };
  const auto receive_input = [&](std::int64_t k, bool comes) {
    const Neighbour from = next_from_neighbour(order, k, true);
    Held out = received(input_, comes && from.sends);
    if (out) chunks_[from.chunk].inputs.push_back(out);
    return out;
  };
  /// Slot `k` takes what has come, and the next one is emptied.
  const auto keep = [](std::vector<Held>& slots, std::int64_t k, Held tensor) {
    const auto at = static_cast<std::size_t>(k);
    const bool came = tensor != nullptr;
    slots[at % slots.size()] = std::move(tensor);
    if (came) slots[(at + 1) % slots.size()].reset();
  };
  const Neighbour first_back{stage_.hands_on.back(), static_cast<std::size_t>(chunks - 1)};
  for (Chunk& c : chunks_) c.released = 0;
  if (stage_.receives[0]) chunks_[0].inputs.push_back(received(input_, true));
  for (std::int64_t k = 0; k < warmup; ++k) {
    input_of_output = run_forward(k);
    input = receive_input(k, k < total - 1);
    if (k == warmup - 1 && warmup < total) gradients.back() = receive_gradient(first_back);
    output.reset();
  }
  for (std::int64_t k = 0; k < total - warmup; ++k) {
    Held taken = run_forward(k + warmup);
    keep(inputs, k + warmup, receive_input(k + warmup, k < total - warmup - 1));
    run_backward(k);
    keep(gradients, k, receive_gradient(next_from_neighbour(order, k, false)));
    input_of_output = std::move(taken);
    output.reset();
  }
  if (warmup == total) receive_gradient(first_back);
  for (std::int64_t k = total - warmup; k < total; ++k) {
    run_backward(k);
    if (k < total - 1)
      output_gradient = receive_gradient(next_from_neighbour(order, k, false));
    else
      output_gradient.reset();
  }
}

}  // namespace oomplan
