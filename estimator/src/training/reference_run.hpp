// The forward pass of a preference loss's reference, between the policy's forward and backward pass: of a second model that is
// sharded as the policy is, or of the policy without its adapters (huggingface/trl trl/trainer/dpo_trainer.py
// _compute_loss, 1.12). Under ZeRO a second model has an engine without an optimizer: stage 3 where the policy's is, whole on
// every rank elsewhere (trl/models/utils.py prepare_deepspeed, 1.12).
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "training/engine.hpp"

namespace oomplan {

template <class R>
class ReferenceRun {
 public:
  /// Nothing where the plan has no reference. REQUIRES: `r`, `plan` and `policy` outlive this.
  ReferenceRun(R& r, const TrainPlan& plan, std::string_view role, TrainEngine<R>& policy) : policy_(policy) {
    if (plan.reference == nullptr) return;
    const ReferencePlan& own = *plan.reference;
    const std::string name = role.empty() ? "reference" : std::string(role) + ".reference";
    apart_ = own.apart;
    teaches_ = own.teaches;
    // the policy's modules are called in another order without its adapters, so that stage 3 gathers by a plan of its own
    if (apart_ || (own.plan.zero != nullptr && own.plan.zero->stage == 3)) engine_.emplace(r, own.plan, name);
    player_.emplace(r, *own.tape, own.plan.log_prob_counts.counts, own.plan.log_prob_counts.chunks, name);
  }
  /// The second model's parameters.
  void load() {
    if (apart_) engine_->load();
  }
  /// A teacher's logits are part of the policy's loss: its pass comes in front of that. REQUIRES: this outlives `policy`.
  void teach(Player<R>& policy) {
    if (!player_ || !teaches_) return;
    policy.before_loss([this] { pass(); });
  }
  void forward() {
    if (player_ && !teaches_) pass();
  }

 private:
  void pass() {
    if (apart_) engine_->before_forward();
    (engine_ ? *engine_ : policy_).forward(*player_, Index(0));
  }

  TrainEngine<R>& policy_;
  bool apart_ = false, teaches_ = false;
  std::optional<TrainEngine<R>> engine_;
  std::optional<Player<R>> player_;
};

}  // namespace oomplan
