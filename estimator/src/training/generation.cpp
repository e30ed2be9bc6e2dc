#include "training/generation.hpp"

#include <algorithm>

#include "catalog/facts.hpp"

namespace oomplan {
namespace {

constexpr std::int64_t kAligned = 16;  ///< aten/src/ATen/native/transformers/attention.cpp pad_bias, 2.13

/// Behind the first pass experts multiply copies of their own for every row (generation/utils.py _optimize_model_for_decode, 5.0
/// to 5.24), however many rows there are.
Experts experts_of(const Trainer& t, bool later) {
  const bool switches = t.transformers_version.empty() || compare_versions(t.transformers_version, "5.0.0") >= 0;
  const bool grouped = t.experts == Experts::automatic || t.experts == Experts::grouped_mm;
  return later && switches && grouped ? Experts::batched_mm : t.experts;
}

Trainer of_pass(const Trainer& t, std::int64_t tokens, bool later) {
  Trainer out = t;
  out.experts = experts_of(t, later);
  out.layout = {};
  out.compute = out.reduce = t.storage;
  out.sequences_per_micro_batch = std::max<std::int64_t>(1, t.sequences_per_micro_batch);
  out.sequence_tokens = std::max<std::int64_t>(1, tokens);
  out.tokens_per_micro_batch = out.sequences_per_micro_batch * out.sequence_tokens;
  out.logits_to_keep = t.head == LossHead::next_token ? 1 : 0;
  out.micro_batches = 1;
  return out;
}

std::shared_ptr<const Architecture> part_of_layers(const std::shared_ptr<const Architecture>& whole, const LayerShare& share) {
  std::int64_t all = 0;
  for (const LayerRun& run : whole->runs) all += run.count;
  if (share.from == 0 && share.to >= all) return whole;
  auto out = std::make_shared<Architecture>(*whole);
  out->runs.clear();
  std::int64_t first = 0;
  for (const LayerRun& run : whole->runs) {
    const std::int64_t from = std::max(share.from, first), to = std::min(share.to, first + run.count);
    first += run.count;
    if (from >= to) continue;
    out->runs.push_back(run);
    out->runs.back().count = to - from;
  }
  return out;
}

PassOptions options_of(const Trainer& t, const Architecture& a, const LayerShare& share, KvCache cache,
                       const KernelInternals& internals, std::int64_t all) {
  PassOptions out = log_prob_pass(t, EngineKind::single, a, false, t.tokens_per_micro_batch, internals);
  // generate() numbers the tokens of every sequence by its mask
  out.kernels.positions_by_row = t.head == LossHead::next_token;
  out.kernels.kv_cache = cache;
  out.kernels.later_token = t.head == LossHead::next_token && cache != KvCache::fills;
  const std::int64_t keys = cache == KvCache::grows ? all : t.sequence_tokens;
  out.kernels.pads_bias = t.padding_mask && keys % kAligned != 0;
  if (cache == KvCache::grows) out.kernels.split_keys = {};
  out.front = share.front;
  out.back = share.back;
  out.chooses = share.front;
  return out;
}

}  // namespace

GenerationPasses generation_passes(const Trainer& t, const std::shared_ptr<const Architecture>& a, std::int64_t prompt,
                                   const LayerShare& share, KernelInternals internals) {
  GenerationPasses out;
  out.architecture = part_of_layers(a, share);
  const bool generates = t.head == LossHead::next_token;
  out.grows = generates && t.kv_cache;
  // the last token that is chosen goes through no pass
  const std::int64_t last = std::max<std::int64_t>(1, t.sequence_tokens - 1);
  out.trainer = of_pass(t, !generates ? t.sequence_tokens : t.kv_cache ? prompt : last, generates && !t.kv_cache);
  out.whole = options_of(out.trainer, *out.architecture, share, t.kv_cache ? KvCache::fills : KvCache::none, internals, last);
  if (!out.grows) return out;
  const Trainer one = of_pass(t, 1, true);
  out.token = options_of(one, *out.architecture, share, KvCache::grows, internals, last);
  out.counts = pass_counts(one, one.tokens_per_micro_batch, one.head, *out.architecture).counts;
  out.counts.d = last;
  out.counts.r = last - 1;
  return out;
}

TrainPlan generation_plan(const GenerationPasses& passes, const TrainTapes& tapes) {
  TrainPlan plan = make_plan(*passes.architecture, passes.trainer, EngineKind::single, false, false, tapes, 1);
  plan.decode = tapes.decode.get();
  plan.decode_counts = passes.counts;
  return plan;
}

}  // namespace oomplan
