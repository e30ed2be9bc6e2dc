// What the losses of slime's and Relax's actors take at once.
#pragma once
#include <optional>

#include "layers/megatron_actor_losses.hpp"
#include "training/megatron_plan.hpp"

namespace oomplan {

/// Samples are those of full length; one, where lengths are not known, needs most.
struct SlimeCut {
  ActorLossKind kind = ActorLossKind::slime;
  std::int64_t samples = 1;
  std::int64_t rows = 0;    ///< of a sample
  std::int64_t chunks = 0;  ///< of a sample: equal ones of at most log_probs_chunk rows (torch.chunk); 0: not cut
  bool head = false;        ///< the output layer runs in them, too
};
/// nullopt: the loss is none of slime's.
std::optional<SlimeCut> slime_cut(const Trainer&, const MegatronUse&);
ActorLoss slime_loss(const Trainer&, const SlimeCut&, bool supervised);
/// Layers that Megatron has not are those of slime's specifications (slime_plugins/models) and of its patch of Megatron
/// (docker/patch).
bool has_slime_layers(const Trainer&);
/// slime's losses of 0.3.0 and before, and Relax's until then.
bool copies_logits(ActorLossKind);

}  // namespace oomplan
