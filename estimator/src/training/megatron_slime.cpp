#include "training/megatron_slime.hpp"

#include <algorithm>

#include "job/model_makers.hpp"
#include "training/megatron_areal.hpp"

namespace oomplan {

bool copies_logits(ActorLossKind kind) { return kind == ActorLossKind::slime_whole || kind == ActorLossKind::slime_samples; }

bool has_slime_layers(const Trainer& t) { return t.loop.says_loss && !made_by_bridge(t); }

namespace {

/// Of more chunks several count as one: each keeps rows of the logits, beside which its few numbers a row are nothing.
constexpr std::int64_t kMostChunks = 8192;

/// Others are alike, and are counted.
bool simulates_chunks(const Trainer& t, ActorLossKind kind) { return t.megatron.recompute_loss || kind != ActorLossKind::slime; }

SlimeCut in_chunks(const Trainer& t, const MegatronUse& use, SlimeCut out) {
  out.head = t.megatron.head_chunk > 0 && use.supervised;
  std::int64_t rows = out.head ? t.megatron.head_chunk : t.megatron.log_probs_chunk;
  if (rows == 0) return out;
  if (simulates_chunks(t, out.kind)) rows = std::max(rows, ceil_div(out.rows * out.samples, kMostChunks));
  out.chunks = ceil_div(out.rows, rows);
  return out;
}

}  // namespace

std::optional<SlimeCut> slime_cut(const Trainer& t, const MegatronUse& use) {
  SlimeCut out;
  if (use.critic || t.megatron.labels > 0) return std::nullopt;  // their losses take few numbers a token
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
  if (t.sequences_per_micro_batch > 0) {
    if (by_samples(out.kind)) out.samples = std::min(t.sequences_per_micro_batch, kMostSamples);
    out.rows = ceil_div(out.rows * t.sequences_per_micro_batch, out.samples);
    return in_chunks(t, use, out);
  }
  if (by_samples(out.kind) && use.sequence > 0)
    out.samples = std::clamp<std::int64_t>(t.tokens_per_micro_batch / use.sequence, 1, kMostSamples);
  out.rows = ceil_div(out.rows, out.samples);
  return in_chunks(t, use, out);
}
ActorLoss slime_loss(const Trainer& t, const SlimeCut& cut, bool supervised) {
  const Megatron& m = t.megatron;
  return {.kind = cut.kind,
          .entropy = !supervised || cut.kind == ActorLossKind::slime,  // at least as a metric
          .entropy_gradient = m.entropy_loss,
          .temperature = m.rollout_temperature != 1 || m.loss == MegatronLoss::slime_divided,
          .checkpoint = m.recompute_loss,
          .topk = m.teacher_topk,
          .topk_alone = m.teacher_in_advantages,
          .chunks =
              cut.head ? 0 : static_cast<int>(simulates_chunks(t, cut.kind) ? cut.chunks : std::min<std::int64_t>(4, cut.chunks)),
          .samples = static_cast<int>(cut.samples),
          .context = t.layout.context > 1,
          .head_chunks = cut.head ? static_cast<int>(cut.chunks) : 0};
}

}  // namespace oomplan
