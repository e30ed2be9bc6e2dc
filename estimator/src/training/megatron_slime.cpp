#include "training/megatron_slime.hpp"

#include <algorithm>

#include "job/model_makers.hpp"
#include "training/megatron_areal.hpp"

namespace oomplan {

bool copies_logits(ActorLossKind kind) { return kind == ActorLossKind::slime_whole || kind == ActorLossKind::slime_samples; }

bool has_slime_layers(const Trainer& t) { return t.loop.says_loss && !made_by_bridge(t); }

std::optional<SlimeCut> slime_cut(const Trainer& t, const MegatronUse& use) {
  SlimeCut out;
  if (use.critic) return std::nullopt;  // its loss takes one number a token
  switch (t.megatron.loss) {
    case MegatronLoss::slime:
      break;
    case MegatronLoss::slime_whole:
      out.kind = ActorLossKind::slime_whole;
      break;
    case MegatronLoss::slime_sliced:
      out.kind = ActorLossKind::slime_sliced;
      break;
    case MegatronLoss::slime_divided:
    case MegatronLoss::slime_samples:
      out.kind = ActorLossKind::slime_samples;
      break;
    default:
      return std::nullopt;
  }
  constexpr std::int64_t kMostSamples = 64;  // each is simulated, and of many none matters by itself
  out.rows = ceil_div(megatron_tokens(t), t.layout.context);
  if (by_samples(out.kind) && use.sequence > 0)
    out.samples = std::clamp<std::int64_t>(t.tokens_per_micro_batch / use.sequence, 1, kMostSamples);
  out.rows = ceil_div(out.rows, out.samples);
  if (t.megatron.log_probs_chunk > 0) out.chunks = ceil_div(out.rows, t.megatron.log_probs_chunk);
  return out;
}
ActorLoss slime_loss(const Trainer& t, const SlimeCut& cut, bool supervised) {
  const Megatron& m = t.megatron;
  const bool all = m.recompute_loss || cut.kind != ActorLossKind::slime;  // simulated
  return {.kind = cut.kind,
          .entropy = !supervised || !copies_logits(cut.kind),  // at least as a metric
          .entropy_gradient = m.entropy_loss,
          .temperature = m.rollout_temperature != 1 || m.loss == MegatronLoss::slime_divided,
          .checkpoint = m.recompute_loss,
          .chunks = static_cast<int>(all ? cut.chunks : std::min<std::int64_t>(4, cut.chunks)),
          .samples = static_cast<int>(cut.samples),
          .context = t.layout.context > 1};
}

}  // namespace oomplan
