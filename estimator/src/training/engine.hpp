// The training engine that a plan asks for, behind one face.
#pragma once
#include <optional>
#include <string_view>

#include "training/fsdp1.hpp"
#include "training/fsdp2.hpp"
#include "training/zero.hpp"

namespace oomplan {

template <class R>
class TrainEngine {
 public:
  /// `role` stands before the names of sites. REQUIRES: `r` and `plan` outlive this.
  TrainEngine(R& r, const TrainPlan& plan, std::string_view role) {
    if (plan.zero != nullptr)
      zero_.emplace(r, plan, role);
    else if (plan.flattened)
      fsdp1_.emplace(r, plan, role);
    else
      fsdp2_.emplace(r, plan, role);
  }
  TrainEngine(const TrainEngine&) = delete;
  TrainEngine& operator=(const TrainEngine&) = delete;

  void load() {
    if (zero_) return zero_->load();
    on([](auto& e) { e.load(); });
  }
  /// DDP, before a micro-batch's forward pass. `gradients`: there are some of earlier micro-batches.
  void rebuild_buckets(bool gradients) {
    if (fsdp2_) fsdp2_->rebuild_buckets(gradients);
  }
  void offload_parameters() {
    on([](auto& e) { e.offload_parameters(); });
  }
  void reload_parameters() {
    on([](auto& e) { e.reload_parameters(); });
  }
  void make_states() {
    if (zero_) return zero_->make_states();
    on([](auto& e) { e.make_states(); });
  }
  void offload_states() {
    on([](auto& e) { e.offload_states(); });
  }
  void reload_states() {
    on([](auto& e) { e.reload_states(); });
  }
  /// FSDP1's state_dict(), in front of a weight update or a checkpoint. `keeps`: pieces of it live until drop_state().
  void read_state(bool keeps) {
    if (fsdp1_) fsdp1_->read_state(keeps);
  }
  void drop_state() {
    if (fsdp1_) fsdp1_->drop_state();
  }
  /// Adapters are read for a weight update, to the host. FSDP2 gathers them one by one (sync.cpp).
  void summon(Summon how) {
    if (fsdp1_) fsdp1_->summon(how);
  }
  /// Drops what the step before has left, in front of any forward pass.
  void before_forward() {
    if (fsdp1_) fsdp1_->before_forward();
    if (zero_) zero_->before_forward();
  }
  void forward(Player<R>& player, Index micro) {
    if (zero_) return zero_->forward(player, micro);
    on([&](auto& e) { e.forward(player, micro); });
  }
  void backward(Player<R>& player, Index micro, bool first, bool last) {
    if (zero_) return zero_->backward(player, micro, first, last);
    on([&](auto& e) { e.backward(player, micro, first, last); });
  }
  /// One device: the backward pass without its end, in which the inputs go and what was recorded at them.
  void backward_keeping_inputs(Player<R>& player, Index micro) { fsdp2_->backward(player, micro, true, true, true); }
  void drop_inputs(Player<R>& player, Index micro) { fsdp2_->drop_inputs(player, micro); }
  void optimizer_step() {
    if (zero_) return zero_->optimizer_step();
    on([](auto& e) { e.optimizer_step(); });
  }
  void drop_gradients(Player<R>& player) {
    if (zero_) return;  // they went with the step
    on([&](auto& e) { e.drop_gradients(player); });
  }

 private:
  template <class Do>
  void on(Do&& act) {
    if (zero_) return;  // nothing of it is offloaded between phases
    if (fsdp1_)
      act(*fsdp1_);
    else
      act(*fsdp2_);
  }
  std::optional<Fsdp1<R>> fsdp1_;
  std::optional<Fsdp2<R>> fsdp2_;
  std::optional<ZeroEngine<R>> zero_;
};

}  // namespace oomplan
