// What a rank of FSDP1 holds between passes: shards, optimizer states, gradients, and what comes and goes with them.
#pragma once
#include <string_view>

#include "training/flat_load.hpp"
#include "training/player.hpp"

namespace oomplan {

template <class R>
class FlatResidents : public FlatLoad<R> {
  using Base = FlatLoad<R>;

 protected:
  using UnitSites = typename Base::UnitSites;
  using Base::each_layer, Base::each_unit_of_the_model, Base::plan_, Base::r_, Base::root, Base::size;

 public:
  FlatResidents(R& r, const TrainPlan& plan, std::string_view role) : Base(r, plan, role) {
    const auto site = [this](std::string_view name, Bytes bytes, Category category, Holder holder) {
      return Base::site("", name, bytes, category, holder);
    };
    const auto host_site = [this](std::string_view name, Bytes bytes) { return Base::host_site("", name, bytes); };
    parameters_ = site("parameters", plan.resident, Category::weights, Holder::resident);
    optimizer_ = site("optimizer.states", plan.optimizer + plan.optimizer_steps, Category::optimizer, Holder::resident);
    if (plan.states_by_tensor) steps_ = site("optimizer.steps", plan.optimizer_steps, Category::optimizer, Holder::resident);
    host_parameters_ = host_site("parameters on the host", plan.resident);
    host_optimizer_ = host_site("optimizer states on the host", plan.optimizer);
    managed_ = host_site("optimizer states in unified memory", plan.optimizer_managed);
    host_gradients_ = host_site("gradients on the host", plan.cpu_offload ? plan.gradients : 0);
    buffers_ = site("buffers", plan.buffers, Category::buffers, Holder::resident);
    transient_ = site("optimizer.temporaries", plan.step_transient, Category::temporaries, Holder::local);
  }

  /// Parameters and buffers of this rank. CPUOffload leaves them on the host, with room for the gradients.
  void load() {
    r_.alloc(buffers_);  // they come with their units, those of a packed base too
    Base::build_units();
    if (plan_.cpu_offload) {
      r_.alloc(host_parameters_);
      r_.alloc(host_gradients_);
    }
  }
  void place_parameters() {
    each_shard([&](const SiteRef& s, Index at) { r_.alloc(s, at); });
  }
  void take_parameters() {
    each_shard([&](const SiteRef& s, Index at) { r_.free(s, at); });
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
  void make_states() {
    if (plan_.cpu_offload)
      r_.alloc(host_optimizer_);
    else
      each_state([&](const SiteRef& s, Index at) { r_.alloc(s, at); });
    if (plan_.optimizer_managed > 0) r_.alloc(managed_);
  }
  void offload_states() {
    r_.alloc(host_optimizer_);
    each_state([&](const SiteRef& s, Index at) { r_.free(s, at); });
  }
  void reload_states() {
    each_state([&](const SiteRef& s, Index at) { r_.alloc(s, at); });
    r_.free(host_optimizer_);
  }

  /// state_dict(): the root's parameters are gathered in the format of the storage, and stay until those of every layer have come
  /// and gone (_state_dict_utils.py). `keeps`: SHARDED_STATE_DICT cuts a piece of each, which lives until drop_state().
  void read_state(bool keeps) {
    r_.alloc(root().whole);
    each_layer([&](const UnitSites& u, Index at) {
      r_.alloc(u.whole, at);
      if (keeps) cut(u, at);
      r_.free(u.whole, at);
    });
    if (keeps) cut(root(), Index(0));
    r_.free(root().whole);
  }
  void drop_state() {
    each_unit_of_the_model([&](const UnitSites& u, Index at) { r_.free(u.pieces, at); });
  }
  /// verl's collect_lora_params (verl/utils/fsdp_utils.py, 0.7.0 and 0.9.0) for adapters that travel: parameters as stored are
  /// gathered by summon_full_params(), a state dict is made of them, and what it has of adapters goes to the host. The root's
  /// own parameters have no hook there, and are not cut.
  void summon(Summon how) {
    if (how == Summon::unit_by_unit) {
      each_layer([&](const UnitSites& u, Index at) {
        gather(u, at);
        cut(u, at);
        r_.free(u.pieces, at);
        drop(u, at);
      });
      return;
    }
    const bool to_host = how == Summon::through_host;
    each_unit_of_the_model([&](const UnitSites& u, Index at) {
      if (!to_host) return gather(u, at);
      for (const auto& one : {u.whole, u.adapter_whole}) {
        r_.alloc(one, at);
        r_.free(one, at);
      }
    });
    each_layer([&](const UnitSites& u, Index at) { cut(u, at); });
    each_layer([&](const UnitSites& u, Index at) { r_.free(u.pieces, at); });
    if (!to_host) each_unit_of_the_model([&](const UnitSites& u, Index at) { drop(u, at); });
  }

  /// In front of every forward pass: the root drops flat gradients that the optimizer no longer sees
  /// (_reset_flat_param_grad_info_if_needed).
  void before_forward() {
    if (left_) free_gradients();
    left_ = false;
  }
  /// What the optimizer's form needs. Under CPUOffload the step runs on the host, and the device has the scalars of the clipping.
  void optimizer_step() {
    each_transient([&](const SiteRef& s, Index at) { r_.alloc(s, at); });
    each_transient([&](const SiteRef& s, Index at) { r_.free(s, at); });
  }
  /// zero_grad(set_to_none=True). With use_orig_params it drops views: the flat gradients stay until the next forward pass.
  void drop_gradients(Player<R>&) {
    if (plan_.cpu_offload) return;
    if (plan_.use_orig_params)
      left_ = true;
    else
      free_gradients();
  }

 protected:
  void free_gradients() {
    each_unit_of_the_model([&](const UnitSites& u, Index at) {
      if (size(u.gradient) > 0) r_.free(u.gradient, at);
      if (size(u.adapter_gradients) > 0) Base::each_adapter_gradient(u, [&](const auto& g) { r_.free(g, at); });
    });
  }

 private:
  void cut(const UnitSites& u, Index at) {
    r_.alloc(u.pieces, at);
    r_.alloc(u.copies, at);
    r_.free(u.copies, at);
  }
  void gather(const UnitSites& u, Index at) {
    r_.alloc(u.whole, at);
    r_.alloc(u.adapter_whole, at);
  }
  void drop(const UnitSites& u, Index at) {
    r_.free(u.adapter_whole, at);
    r_.free(u.whole, at);
  }
  /// Units one by one when a program is written, as one sum when it is folded.
  template <class Do>
  void each_shard(Do&& act) {
    if constexpr (R::kWrites)
      each_unit_of_the_model([&](const UnitSites& u, Index at) {
        for (const auto& adapter : u.adapters) act(adapter.shard, at);
        act(u.parameter, at);
      });
    else
      act(parameters_, Index(0));
  }
  /// States of adapters one by one when a program is written: many small tensors.
  template <class Do>
  void each_state(Do&& act) {
    if constexpr (R::kWrites) {
      if (plan_.states_by_tensor) {
        each_unit_of_the_model([&](const UnitSites& u, Index at) {
          for (const auto& adapter : u.adapters)
            for (const SiteRef& state : adapter.states) act(state, at);
        });
        return act(steps_, Index(0));
      }
    }
    act(optimizer_, Index(0));
  }

  /// foreach's list of square roots: of adapters a small tensor each, which large free blocks cannot serve.
  template <class Do>
  void each_transient(Do&& act) {
    if constexpr (R::kWrites) {
      if (plan_.states_by_tensor && plan_.step_transient == plan_.flat.trained)
        return each_unit_of_the_model([&](const UnitSites& u, Index at) {
          for (const auto& adapter : u.adapters) act(adapter.square_root, at);
        });
    }
    act(transient_, Index(0));
  }

  SiteRef parameters_, optimizer_, steps_, buffers_, transient_, host_parameters_, host_optimizer_, host_gradients_, managed_;
  bool left_ = false;  ///< flat gradients of the step before are still there
};

}  // namespace oomplan
