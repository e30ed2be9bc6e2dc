#include "search/megatron_bound.hpp"

#include <algorithm>
#include <utility>

#include <oomplan/units/errors.hpp>

#include "estimate/role_run.hpp"
#include "job/megatron_losses.hpp"
#include "layers/megatron.hpp"
#include "training/megatron_plan.hpp"

namespace oomplan {
namespace {

/// Bytes per second of a GPU to other nodes (one 400 Gb/s adapter a GPU, as DGX systems have them): only orders layouts.
constexpr double kBetweenNodes = 5e10;

/// Passes in flight on stage r when most are (megatron/core/pipeline_parallel/schedules.py, 0.16.1).
std::int64_t passes_in_flight(const MegatronSplit& s, std::int64_t stage, std::int64_t micro_batches) {
  if (s.chunks == 1) return std::min(s.pipeline - stage, micro_batches);
  return std::min(2 * (s.pipeline - stage - 1) + (s.chunks - 1) * s.pipeline + 1, micro_batches * s.chunks);
}

/// Bytes of masters and states on the GPU for a number of a rank's share, at least.
std::int64_t least_of_optimizer(const Megatron& m) {
  if (m.stateless_adam) return 4;
  if (m.host_optimizer) return m.precision_aware ? 0 : 4;
  return m.precision_aware ? (m.fp32_masters ? 4 : 2) + row(m.exp_avg).bits / 8 + row(m.exp_avg_sq).bits / 8 : 12;
}

/// The role's settings on one stage with these ranks.
Trainer one_stage(const Trainer& t, const MegatronRanks& r) {
  Trainer out = t;
  put_megatron({}, r, {}, 1, {}, out);
  return out;
}

}  // namespace

MegatronBound::MegatronBound(const Job& job, const Role& role, const Catalog& catalog)
    : job_(job),
      role_(role),
      model_(*role.architecture),
      gpu_(catalog.gpu(job.cluster.gpu)),
      cost_(cost_of(model_)),
      sequences_(std::max<std::int64_t>(1, role.trainer.sequences_per_micro_batch)),
      tokens_(role.trainer.sequences_per_micro_batch > 0 ? role.trainer.sequence_tokens : role.trainer.tokens_per_micro_batch) {
  const ProcessConstants c = process_constants(job, role, catalog);
  constants_ = c.context + 2 * c.workspace;  // communicators depend on the layout
}
MegatronBound::~MegatronBound() = default;

const MegatronBound::Stages* MegatronBound::stages(const MegatronSplit& s) {
  auto& known = stages_[{s.pipeline, s.chunks, s.first, s.last}];
  if (known) return known->layers.empty() ? nullptr : known.get();
  known = std::make_unique<Stages>();
  Trainer t = role_.trainer;
  put_megatron(s, {}, {}, 1, {}, t);
  try {
    for (std::int64_t stage = 0; stage < s.pipeline; ++stage) {
      std::vector<std::int64_t> counts(model_.runs.size(), 0);
      std::size_t smallest = static_cast<std::size_t>(model_.layers());
      for (const auto& chunk : megatron_layers(model_, t, stage)) {
        for (const int run : chunk) ++counts[static_cast<std::size_t>(run)];
        smallest = std::min(smallest, chunk.size());
      }
      known->layers.push_back(std::move(counts));
      known->smallest.push_back(static_cast<std::int64_t>(smallest));
    }
  } catch (const InputError&) {  // layers that cannot be dealt so
    known->layers.clear();
    return nullptr;
  }
  return known.get();
}

MegatronBound::Layers MegatronBound::look_at(const MegatronRanks& r, const std::vector<std::string>& selective) const {
  Layers out;
  Trainer t = one_stage(role_.trainer, r);
  t.recompute = selective.empty() ? Recompute::none : Recompute::selective;
  t.megatron.recompute_modules = selective;
  ChunkOptions options = megatron_chunks(model_, t, 0).front();
  const std::int64_t blocks = std::exchange(options.mtp, 0), idle = std::exchange(options.idle_mtp, 0);  // no part of every layer
  TokenCounts counts;
  counts.b = sequences_;
  counts.s = tokens_ / r.context / (r.sequence_parallel ? r.tensor : 1);
  // what a layer saves does not depend on how many ranks share a context or the experts, but on whether they do
  const RanksKey alike{
      r.tensor, std::min<std::int64_t>(2, r.context), std::min<std::int64_t>(2, r.expert), r.expert_tensor, r.sequence_parallel,
      selective};
  auto& saved = saved_[alike];
  const bool seen = !saved.empty();
  for (std::size_t run = 0; run < model_.runs.size(); ++run) {
    options.first = options.last = false;
    options.layers = {static_cast<int>(run)};
    const MegatronParameters n = megatron_parameters(model_, {options});
    Layers::One one{n.dense, n.experts, 0};
    if (!seen) {
      Layers::One shapes;
      for (const auto& site : saved_of_chunk_layer(model_, options, 0)) shapes.saved += site.bytes.value(counts);
      shapes.dense = counts.s;  // of how many tokens
      saved.push_back(shapes);
    }
    one.saved = saved[run].saved * counts.s / std::max<std::int64_t>(1, saved[run].dense);
    out.runs.push_back(one);
  }
  options.layers.clear();
  options.first = true;
  out.first = megatron_parameters(model_, {options}).dense;
  options.first = false;
  options.last = true;
  out.last = megatron_parameters(model_, {options}).dense;
  options.mtp = blocks;
  options.idle_mtp = idle;
  const bool alone = options.settings.mtp_alone;
  if (blocks + idle > 0) {
    const MegatronParameters with = megatron_parameters(model_, {options});
    const std::int64_t table = alone ? 0 : options.padded_vocab / r.tensor * model_.hidden;  // one stage alone has one of them
    out.last += std::max<std::int64_t>(0, with.dense - out.last - table);
    out.last_experts = with.experts;
  }
  out.hidden = alone ? 0 : bytes_of(counts.b * counts.s * model_.hidden, DType::bf16);
  const std::int64_t whole = counts.b * counts.s * (r.sequence_parallel ? r.tensor : 1);
  // the fp32 logits at least, of slime's losses those in 16 bits; verl's fused kernels make none of all tokens
  const MegatronLoss loss = t.megatron.loss;
  const std::int64_t width = loss == MegatronLoss::verl_fused ? 0 : loss == MegatronLoss::te || is_slimes(loss) ? 2 : 4;
  const std::int64_t predicted = blocks == 0 ? 0 : loss == MegatronLoss::te ? 2 : 4;  // what the blocks' loss keeps
  out.logits = whole * options.padded_vocab / r.tensor * ((alone ? 0 : width) + predicted);
  return out;
}

const MegatronBound::Layers& MegatronBound::layers(const MegatronRanks& r, const std::vector<std::string>& selective) {
  const RanksKey key{r.tensor, r.context, r.expert, r.expert_tensor, r.sequence_parallel, selective};
  if (const auto known = layers_.find(key); known != layers_.end()) return known->second;
  Layers out;
  try {
    out = look_at(r, selective);
  } catch (const InputError&) {  // what the layers themselves refuse
    out.possible = false;
  }
  return layers_.emplace(key, std::move(out)).first->second;
}

Bytes MegatronBound::need(const MegatronSplit& s, const Stages& at, const MegatronRanks& r, const MegatronRecompute& c,
                          const Layers& l, std::int64_t data, std::int64_t micro_batches) const {
  const Trainer& t = role_.trainer;
  const bool distributed = t.megatron.distributed_optimizer;
  const std::int64_t dense_ranks = distributed ? data * r.context : 1;
  const std::int64_t world = data * r.tensor * r.context * s.pipeline;
  const std::int64_t expert_ranks =
      distributed ? std::max<std::int64_t>(1, world / (r.expert_tensor * r.expert * s.pipeline)) : 1;
  const std::int64_t flat = 2 + row(t.reduce).bits / 8;  // parameters and gradients
  const std::int64_t share = least_of_optimizer(t.megatron);
  Bytes most = 0;
  for (std::int64_t stage = 0; stage < s.pipeline; ++stage) {
    std::int64_t dense = 0, experts = 0;
    Bytes saved = 0, least = 0;
    const auto& counts = at.layers[static_cast<std::size_t>(stage)];
    for (std::size_t run = 0; run < counts.size(); ++run) {
      if (counts[run] == 0) continue;
      dense += counts[run] * l.runs[run].dense;
      experts += counts[run] * l.runs[run].experts;
      saved += counts[run] * l.runs[run].saved;
      least = least == 0 ? l.runs[run].saved : std::min(least, l.runs[run].saved);
    }
    if (stage == 0) dense += l.first;
    if (stage == s.pipeline - 1) {
      dense += l.last;
      experts += l.last_experts;
    }
    const std::int64_t of_chunk = at.smallest[static_cast<std::size_t>(stage)];
    Bytes pass = s.chunks == 1 ? saved : of_chunk * least;
    if (c.what == Recompute::full) {
      const std::int64_t kept =
          c.method == RecomputeMethod::uniform ? (of_chunk + c.layers - 1) / c.layers : std::min(c.layers, of_chunk);
      const std::int64_t whole = c.method == RecomputeMethod::uniform ? 0 : of_chunk - kept;
      pass = kept * l.hidden + whole * least;
    }
    Bytes level = constants_ + (dense + experts) * flat + share * (dense / dense_ranks + experts / expert_ranks) +
                  passes_in_flight(s, stage, micro_batches) * pass;
    if (stage == s.pipeline - 1) level += l.logits;
    most = std::max(most, level);
  }
  return most;
}

double MegatronBound::seconds(const MegatronSplit& s, const MegatronRanks& r, const MegatronRecompute& c, std::int64_t data,
                              std::int64_t micro_batches) const {
  const double gpus = static_cast<double>(data * r.tensor * r.context * s.pipeline);
  const double tokens = static_cast<double>(sequences_ * tokens_ * micro_batches * data);
  const double layers = static_cast<double>(model_.layers());
  double again = 0;                                 // share of the forward pass that runs again
  if (c.what == Recompute::selective) again = 0.6;  // feed-forward blocks, two thirds of most layers
  if (c.what == Recompute::full)
    again =
        c.method == RecomputeMethod::uniform ? 1 : std::min(1.0, static_cast<double>(c.layers * s.chunks * s.pipeline) / layers);
  const double per_token = (6 + 2 * again) * (cost_.active + cost_.attention_width * static_cast<double>(tokens_));
  const double arithmetic = tokens * per_token / gpus / gpu_.bf16_flops;
  const double idle = static_cast<double>(s.pipeline - 1) / static_cast<double>(s.chunks * micro_batches);
  // one micro-batch's hidden states on this rank cross the tensor ranks four times a layer and pass, gathered or summed
  const double hidden = 2.0 * static_cast<double>(sequences_ * tokens_ / r.context * model_.hidden);
  const double passes = static_cast<double>(micro_batches) * layers / static_cast<double>(s.pipeline);
  const double link = std::max(1.0, gpu_.link_bandwidth);
  const auto wire = [&](std::int64_t ranks) { return ranks > job_.cluster.gpus_per_node ? std::min(link, kBetweenNodes) : link; };
  const double t = static_cast<double>(r.tensor);
  double traffic = r.tensor > 1 ? passes * (4 + 2 * again) * 2 * hidden * (t - 1) / t / link : 0;
  if (r.context > 1) traffic += passes * (3 + again) * hidden / t / wire(r.tensor * r.context);
  for (const auto& run : model_.runs) {
    const FeedForward& f = run.layer.feed_forward;
    if (f.kind != FeedForwardKind::moe || r.expert == 1) continue;
    const double share = static_cast<double>(run.count) / layers;
    traffic += passes * share * (4 + 2 * again) * hidden / t * static_cast<double>(f.experts_per_token) /
               wire(r.expert * r.expert_tensor);
  }
  // gradients out and parameters in, once a step
  const double of_rank = cost_.parameters / (t * static_cast<double>(s.pipeline * r.expert));
  traffic += data * r.context > 1 ? 6 * of_rank / wire(r.tensor * data * r.context) : 0;
  return arithmetic * (1 + idle) + traffic;
}

}  // namespace oomplan
