#include "inference/stage.hpp"

#include <algorithm>
#include <limits>
#include <span>

#include "inference/layer_tensors.hpp"
#include "inference/weight_blocks.hpp"

namespace oomplan {
namespace {

/// Runs of layers of a stage whose allocations are followed; more than models have.
constexpr std::size_t kMostRuns = 256;

/// Rows of embedding and head on one rank: padded to the engine's step, then cut in tp equal parts. SGLang pads to tp steps when
/// one step does not divide (sglang/srt/layers/vocab_parallel_embedding.py, 0.5.10).
std::int64_t vocab_rows(std::int64_t vocab, std::int64_t padding, std::int64_t tp) {
  const std::int64_t padded = round_up(vocab, padding);
  return (padded % tp == 0 ? padded : round_up(vocab, padding * tp)) / tp;
}

void add_cache(Stage& out, const LayerCache& cache, std::int64_t tp, std::int64_t count) {
  if (cache.kind == CacheKind::none) return;
  const std::int64_t heads = std::max<std::int64_t>(1, cache.heads / tp);
  const Bytes conv = ceil_div(cache.state_conv, tp) + heads * cache.state_group;
  CacheBucket bucket{cache.kind,       cache.window,     0, cache.token_head, conv, ceil_div(cache.state_recurrent, tp),
                     cache.conv_steps, cache.compression};
  if (cache.kind != CacheKind::latent && cache.kind != CacheKind::compressed) bucket.token *= heads;
  int at = 0;
  for (; at < out.bucket_count; ++at) {
    const CacheBucket& b = out.buckets[static_cast<std::size_t>(at)];
    if (b.kind == bucket.kind && b.window == bucket.window && b.token == bucket.token && b.conv == bucket.conv &&
        b.recurrent == bucket.recurrent && b.compression == bucket.compression)
      break;
  }
  if (at == kMostBuckets) at = kMostBuckets - 1;
  if (at == out.bucket_count) {
    out.buckets[static_cast<std::size_t>(at)] = bucket;
    ++out.bucket_count;
  }
  out.buckets[static_cast<std::size_t>(at)].layers += count;
}

Bytes states_of(const ServerModel& m, std::int64_t tp) {
  Stage all;
  for (const ServerLayerRun& run : m.totals) add_cache(all, m.kinds[static_cast<std::size_t>(run.kind)].cache, tp, run.count);
  Bytes out = 0;
  for (int i = 0; i < all.bucket_count; ++i) {
    const CacheBucket& b = all.buckets[static_cast<std::size_t>(i)];
    out += b.layers * (b.conv + b.recurrent);
  }
  return out;
}

Bytes smallest_large(const LayerTensors& tensors, Bytes least) {
  for (const Bytes tensor : tensors.all())
    if (tensor > kMiB) least = std::min(least, tensor);
  return least;
}

/// What the log shows of the stage's weights beyond their bytes: vLLM torch.cuda.memory_allocated, SGLang the difference of free
/// memory. Layers of a kind are taken together, as the runs of `runs` name them.
Bytes allocator_slack(const Stage& s, const ServerModel& m, const ServerFacts& f, const RankShare& cut,
                      std::span<const ServerLayerRun> runs) {
  if (f.expandable_segments) return 0;  // cut at 512 bytes
  const Bytes rope = rope_bytes(m, f);
  Bytes least = std::numeric_limits<Bytes>::max();
  for (const ServerLayerRun& run : runs)
    least = smallest_large(layer_tensors(m, m.kinds[static_cast<std::size_t>(run.kind)], f, cut), least);
  WeightBlocks blocks(least, f.load_max_split);
  blocks.take(s.embedding - s.draft_embedding);
  for (const ServerLayerRun& run : runs)
    blocks.layers(layer_tensors(m, m.kinds[static_cast<std::size_t>(run.kind)], f, cut).all(), run.count);
  blocks.take(rope);
  blocks.take(s.head - s.draft_head);
  blocks.take(s.draft_embedding);
  blocks.take(s.draft_head);
  for (const ServerLayerRun& run : runs) {  // made when the weights are there: kv_b in two parts
    const Bytes half = ceil_div(m.kinds[static_cast<std::size_t>(run.kind)].absorbed, cut.tensor) / 2;
    const std::array<Bytes, 2> parts{half, half};
    blocks.layers(parts, run.count);
  }
  const WeightBlocks::Totals& totals = blocks.totals();
  return (m.engine == EngineKind::vllm ? totals.counted : totals.reserved) - totals.asked;
}

/// Parameters of the layers go to the host one by one, first layer first, until the budget is reached (vllm/model_executor/
/// offloader/uva.py, August 2026; sglang/srt/utils/offloader.py OffloaderV1, 0.5.18).
Bytes offloaded(const ServerModel& m, const ServerFacts& f, const RankShare& cut, std::span<const ServerLayerRun> runs) {
  Bytes out = 0;
  for (const ServerLayerRun& run : runs) {
    const LayerTensors tensors = layer_tensors(m, m.kinds[static_cast<std::size_t>(run.kind)], f, cut);
    for (std::int64_t layer = 0; layer < run.count; ++layer)
      for (const Bytes tensor : tensors.all()) {
        if (out >= f.offloaded_weights) return out;
        out += tensor;
      }
  }
  return out;
}

void add_layers(Stage& out, const ServerModel& m, const ServerFacts& f, const ServerLayerRun& run, const RankShare& cut) {
  const ServerLayer& l = m.kinds[static_cast<std::size_t>(run.kind)];
  const std::int64_t tp = cut.tensor, count = run.count;
  const std::int64_t kv_heads = std::max<std::int64_t>(1, l.kv_heads / tp);
  out.layers += count;
  out.norms += count * l.norms;
  out.mixers += count * (l.mixer_replicated + ceil_div(l.mixer, tp) + kv_heads * l.kv_head);
  out.absorbed += count * ceil_div(l.absorbed, tp);
  const std::int64_t block = RankShare::ranks(l.experts > 0 ? cut.shared : cut.dense, tp);
  const Bytes router = m.compute == DType::fp32 ? l.router : l.router * f.router_bits / 16;
  out.feed_forwards += count * (router + l.feed_forward_replicated + ceil_div(l.feed_forward, block));
  if (m.shared_step > 1 && l.width > 0)  // filled up with zeros, so that blocks of the format stay whole
    out.feed_forwards += count * (l.feed_forward / l.width * (round_up(l.width, m.shared_step * block) - l.width) / block);
  out.feed_forwards += count * shared_expert_replicas(m, l, f, cut);
  if (l.experts > 0) out.experts += count * expert_tensors(m, l, f, cut).all();
  out.adapters += count * (l.adapters_replicated + ceil_div(l.adapters, tp) + kv_heads * l.adapters_kv_head);
  add_cache(out, l.cache, tp, count);
  const std::int64_t width = ceil_div(l.width, block), expert = ceil_div(l.expert_width, cut.expert_width_parts());
  out.attention = std::max(out.attention, ceil_div(l.attention_width, tp));
  out.context = std::max(out.context, ceil_div(l.context_width, tp));
  out.gate_up = std::max(out.gate_up, width * (l.gated ? 2 : 1));
  out.activation = std::max(out.activation, width);
  if (m.unpacks) {
    const std::int64_t held = experts_of_rank(l, f, cut) * expert * (l.experts_gated ? 3 : 2);
    out.unpacked = std::max(out.unpacked, bytes_of((l.experts > 0 ? std::max(held, width) : width) * m.hidden, m.compute));
  }
  out.workspace13 = std::max(out.workspace13, l.experts_per_token * expert * (l.experts_gated ? 2 : 1));
  out.workspace2 = std::max(out.workspace2, l.experts_per_token * expert);
}

/// A draft's own tables. The embedding is the model's where both are of one width, for a checkpoint without one, or with the
/// model's (vllm/v1/spec_decode/eagle.py _maybe_share_embeddings, 0.19; sglang/srt/models/llama.py set_embed, 0.5.10).
void add_draft_tables(Stage& out, const ServerModel& m, const ServerFacts& f, const RankShare& cut) {
  const auto rows = [&](std::int64_t vocab, std::int64_t ranks) {
    return vocab_rows(vocab, f.vocab_padding, RankShare::ranks(ranks, cut.tensor));
  };
  const ServerDraft& d = m.draft;
  if (d.own_embedding) out.draft_embedding = rows(d.vocab, cut.table) * d.row;
  if (d.head_rows > 0) out.draft_head = rows(d.head_rows, cut.head) * d.row;
  if (d.loads_embedding) out.draft_loaded += rows(d.vocab, cut.table) * d.row;
  if (d.loads_head) out.draft_loaded += rows(d.vocab, cut.head) * d.row;
  out.embedding += out.draft_embedding;
  out.head += out.draft_head;
  out.outside += m.draft_outside + f.rope_tables * d.rope_elements * f.rope_bits / 8;
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

Bytes tower_bytes(const ServerModel& m, const ServerFacts& f, std::int64_t tp, bool first) {
  if (f.tower_off) return 0;
  const Bytes positions =
      ceil_div(m.tower_positions, f.tower_positions_cut && !(m.whole_tower && f.tower_positions_follow) ? tp : 1);
  return ceil_div(m.tower, tp) + m.tower_whole + (first ? positions : 0);
}

Bytes rope_bytes(const ServerModel& m, const ServerFacts& f) { return f.rope_tables * m.rope_elements * f.rope_bits / 8; }

Bytes input_bytes(const ServerModel& m, std::int64_t batched_tokens, bool first) {
  return bytes_of(((first ? m.input_elements : 0) + m.stage_elements) * batched_tokens, m.compute);
}

Stage stage_of(const ServerModel& m, const ServerFacts& f, std::int64_t tp, std::int64_t pp, std::int64_t ep,
               std::int64_t index) {
  RankShare cut;
  cut.tensor = tp;
  cut.expert = ep;
  return stage_of(m, f, cut, pp, index);
}

Stage drafts_of(const ServerModel& m, const ServerFacts& f, const RankShare& cut) {
  Stage out;
  add_draft_tables(out, m, f, cut);
  for (const ServerLayerRun& run : m.drafts) add_layers(out, m, f, run, cut);
  out.slack = allocator_slack(out, m, f, cut, m.drafts);
  return out;
}

Stage stage_of(const ServerModel& m, const ServerFacts& f, const RankShare& cut, std::int64_t pp, std::int64_t index) {
  Stage out;
  out.first = index == 0;
  out.last = index == pp - 1;
  const auto rows = [&](std::int64_t vocab, std::int64_t ranks) {
    return vocab_rows(vocab, f.vocab_padding, RankShare::ranks(ranks, cut.tensor));
  };
  const bool embeds = out.first || f.embedding_every_stage || (out.last && m.tied);
  if (embeds) out.embedding = (m.whole_embedding ? m.vocab : rows(m.vocab, cut.table)) * m.row;
  if ((out.first || f.embedding_every_stage) && m.layer_vocab > 0)
    out.embedding += (m.whole_embedding ? m.layer_vocab : rows(m.layer_vocab, cut.table)) * m.layer_row;
  if (m.labels > 0)
    out.head = out.last ? m.labels * m.head_row : 0;
  else if ((out.last || f.head_every_stage) && !m.tied)
    out.head = rows(m.vocab, cut.head) * m.head_row;
  const bool drafts = out.last && m.engine == EngineKind::vllm;  // SGLang has them in a worker of their own: drafts_of()
  out.outside = m.outside + ceil_div(m.outside_cut, cut.tensor);
  if (drafts) add_draft_tables(out, m, f, cut);
  out.adapters = (out.first ? m.adapters_embedding : 0) + (out.last ? m.adapters_head : 0);
  const StageLayers range = stage_layers(m.layers, pp, index, f.extra_layers);
  std::array<ServerLayerRun, kMostRuns> here{};
  std::size_t count = 0;
  const auto add = [&](const ServerLayerRun& run) {
    add_layers(out, m, f, run, cut);
    if (count < here.size()) here[count++] = run;
  };
  std::int64_t at = 0;
  for (const ServerLayerRun& run : pp == 1 ? m.totals : m.runs) {
    const std::int64_t from = std::max(at, range.first), to = std::min(at + run.count, range.first + range.count);
    if (to > from) add({run.kind, to - from});
    at += run.count;
  }
  if (drafts)
    for (const ServerLayerRun& run : m.drafts) add(run);
  out.states_of_model = states_of(m, cut.tensor);
  if (f.stages_cache_all_layers) {
    out.bucket_count = 0;
    for (const ServerLayerRun& run : m.totals)
      add_cache(out, m.kinds[static_cast<std::size_t>(run.kind)].cache, cut.tensor, run.count);
  }
  const std::span<const ServerLayerRun> runs(here.data(), count);
  out.slack = allocator_slack(out, m, f, cut, runs);
  if (f.offloaded_weights > 0) out.offloaded = offloaded(m, f, cut, runs);
  return out;
}

}  // namespace oomplan
