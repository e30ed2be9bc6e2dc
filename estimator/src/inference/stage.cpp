#include "inference/stage.hpp"

#include <algorithm>

namespace oomplan {
namespace {

/// Rows of embedding and head on one rank: padded to the engine's step, then cut in tp equal parts. SGLang pads to tp steps when
/// one step does not divide (sglang/srt/layers/vocab_parallel_embedding.py, 0.5.10).
std::int64_t vocab_rows(std::int64_t vocab, std::int64_t padding, std::int64_t tp) {
  const std::int64_t padded = round_up(vocab, padding);
  return (padded % tp == 0 ? padded : round_up(vocab, padding * tp)) / tp;
}

void add_cache(Stage& out, const LayerCache& cache, std::int64_t tp, std::int64_t count) {
  if (cache.kind == CacheKind::none) return;
  CacheBucket bucket{
      cache.kind, cache.window, 0, cache.token_head, ceil_div(cache.state_conv, tp), ceil_div(cache.state_recurrent, tp)};
  if (cache.kind != CacheKind::latent) bucket.token *= std::max<std::int64_t>(1, cache.heads / tp);
  int at = 0;
  for (; at < out.bucket_count; ++at) {
    const CacheBucket& b = out.buckets[static_cast<std::size_t>(at)];
    if (b.kind == bucket.kind && b.window == bucket.window && b.token == bucket.token && b.conv == bucket.conv &&
        b.recurrent == bucket.recurrent)
      break;
  }
  if (at == kMostBuckets) at = kMostBuckets - 1;
  if (at == out.bucket_count) {
    out.buckets[static_cast<std::size_t>(at)] = bucket;
    ++out.bucket_count;
  }
  out.buckets[static_cast<std::size_t>(at)].layers += count;
}

/// An allocation of 10 MiB or more has a segment of its own, in steps of 2 MiB (c10/cuda/CUDACachingAllocator.cpp, 2.9,
/// kMinLargeAlloc and kRoundLarge); smaller ones share segments.
Bytes slack_of(Bytes allocation) {
  constexpr Bytes kOwnSegment = Bytes{10} << 20, kStep = Bytes{2} << 20;
  return allocation < kOwnSegment ? 0 : round_up(allocation, kStep) - allocation;
}

Bytes slack_of(const ServerLayer& l, std::int64_t tp, std::int64_t ep) {
  Bytes out = 0;
  for (std::size_t i = 0; i < kFusedCount; ++i) {
    const FusedMatrix& m = l.matrices[i];
    if (i == static_cast<std::size_t>(Fused::experts_up) || i == static_cast<std::size_t>(Fused::experts_down))
      out += slack_of(ceil_div(ceil_div(l.experts, ep) * m.split, std::max<std::int64_t>(1, tp / ep)));
    else
      out += slack_of(ceil_div(m.split, tp) + std::max<std::int64_t>(1, l.kv_heads / tp) * m.kv_head);
  }
  return out;
}

void add_layers(Stage& out, const ServerLayer& l, std::int64_t tp, std::int64_t ep, std::int64_t count) {
  const std::int64_t kv_heads = std::max<std::int64_t>(1, l.kv_heads / tp);
  out.layers += count;
  out.slack += count * slack_of(l, tp, ep);
  out.norms += count * l.norms;
  out.mixers += count * (l.mixer_replicated + ceil_div(l.mixer, tp) + kv_heads * l.kv_head);
  out.absorbed += count * ceil_div(l.absorbed, tp);
  out.feed_forwards += count * (l.router + l.feed_forward_replicated + ceil_div(l.feed_forward, tp));
  const std::int64_t width_parts = std::max<std::int64_t>(1, tp / ep);
  out.experts += count * ceil_div(ceil_div(l.experts, ep) * l.expert, width_parts);
  out.adapters += count * (l.adapters_replicated + ceil_div(l.adapters, tp) + kv_heads * l.adapters_kv_head);
  add_cache(out, l.cache, tp, count);
  const std::int64_t width = ceil_div(l.width, tp), expert = ceil_div(l.expert_width, width_parts);
  out.attention = std::max(out.attention, ceil_div(l.attention_width, tp));
  out.context = std::max(out.context, ceil_div(l.context_width, tp));
  out.gate_up = std::max(out.gate_up, width * (l.gated ? 2 : 1));
  out.activation = std::max(out.activation, width);
  out.workspace13 = std::max(out.workspace13, l.experts_per_token * expert * (l.experts_gated ? 2 : 1));
  out.workspace2 = std::max(out.workspace2, l.experts_per_token * expert);
}

}  // namespace

StageLayers stage_layers(std::int64_t layers, std::int64_t stages, std::int64_t index, ExtraLayers extra) {
  const std::int64_t base = layers / stages, rest = layers % stages;
  StageLayers out{index * base, base};
  switch (extra) {
    case ExtraLayers::before_last: {  // stages [stages-1-rest, stages-1) get one more
      const std::int64_t from = stages - 1 - rest;
      if (index >= from && index < stages - 1) ++out.count;
      out.first += std::clamp<std::int64_t>(index - from, 0, rest);
      return out;
    }
    case ExtraLayers::last_all:
      if (index == stages - 1) out.count += rest;
      return out;
    case ExtraLayers::last_ones:
      if (index >= stages - rest) ++out.count;
      out.first += std::max<std::int64_t>(0, index - (stages - rest));
      return out;
  }
  return out;
}

Stage stage_of(const ServerModel& m, const ServerFacts& f, std::int64_t tp, std::int64_t pp, std::int64_t ep,
               std::int64_t index) {
  Stage out;
  out.first = index == 0;
  out.last = index == pp - 1;
  const std::int64_t rows = vocab_rows(m.vocab, f.vocab_padding, tp);
  if (out.first || (out.last && m.tied)) out.embedding = rows * m.row;
  if (out.last && !m.tied) out.head = rows * m.head_row;
  out.slack = slack_of(out.embedding) + slack_of(out.head);
  out.outside = m.outside + (out.last ? m.draft_outside : 0);
  out.adapters = (out.first ? m.adapters_embedding : 0) + (out.last ? m.adapters_head : 0);
  const StageLayers range = stage_layers(m.layers, pp, index, f.extra_layers);
  std::int64_t at = 0;
  for (const ServerLayerRun& run : pp == 1 ? m.totals : m.runs) {
    const std::int64_t from = std::max(at, range.first), to = std::min(at + run.count, range.first + range.count);
    if (to > from) add_layers(out, m.kinds[static_cast<std::size_t>(run.kind)], tp, ep, to - from);
    at += run.count;
  }
  if (out.last)
    for (const ServerLayerRun& run : m.drafts) add_layers(out, m.kinds[static_cast<std::size_t>(run.kind)], tp, ep, run.count);
  return out;
}

}  // namespace oomplan
