#include "training/zero_plan.hpp"

#include <algorithm>
#include <numeric>

#include "job/head_rules.hpp"
#include "training/optimizers.hpp"
#include "training/zero_modules.hpp"

namespace oomplan {
namespace {

constexpr Bytes kFp32Bytes = 4, kDouble = 8;
/// _constant_buffered_norm2: gradients that go to the host are cut for their norm
constexpr std::int64_t kNormPart = 250'000'000;

/// Elements of the trained parameters, one by one in the order of the model.
struct Trained {
  std::vector<std::int64_t> elements;
  std::int64_t all = 0, largest = 0;
};
Trained trained_of(const Tape& tape) {
  Trained out;
  for (std::size_t s = 0; s < tape.stations.size(); ++s)
    for (std::int64_t unit = 0; unit < std::max<std::int64_t>(1, tape.stations[s].count); ++unit)
      for (const TapeLeaf& leaf : tape.leaves)
        if (leaf.station == s && leaf.trainable) out.elements.push_back(leaf.elements());
  for (const std::int64_t n : out.elements) {
    out.all += n;
    out.largest = std::max(out.largest, n);
  }
  return out;
}
Bytes all_as_stored(const Tape& tape, const std::vector<DType>& storage, bool trained_only) {
  Bytes out = 0;
  for (std::size_t i = 0; i < tape.leaves.size(); ++i)
    if (!trained_only || tape.leaves[i].trainable)
      out += bytes_of(tape.leaves[i].elements(), storage[i]) * tape.stations[tape.leaves[i].station].count;
  return out;
}

/// What the optimizer's step makes of fp32 copies: foreach Adam a list of square roots.
std::int64_t copies_of_step(const Trainer& t) { return adam(t.optimizer) && t.optimizer_form == OptimizerForm::foreach ? 1 : 0; }

/// Without a 16-bit mode stage 2 adds what it reduces up in a flat tensor of the piece (_build_compact_grad_partition_buffer,
/// 0.19.8), on every rank the same.
void gradients_in_fp32(ZeroPlan& z, std::int64_t piece, std::int64_t largest_piece) {
  z.in_partition = piece * z.reduced;
  z.more_in_step = 0;
  z.norm = largest_piece * kDouble;
}

/// Stages 1 and 2: all parameters in one flat tensor, of which every rank updates an equal piece.
void flat_partitions(ZeroPlan& z, const Tape& tape, const Trainer& t, const std::vector<DType>& storage) {
  const Trained trained = trained_of(tape);
  const std::int64_t alignment = 2 * z.ranks;  // nccl_start_alignment_factor
  const std::int64_t flat = round_up(trained.all, alignment), piece = flat / z.ranks;
  z.parameters = all_as_stored(tape, storage, false);
  if (!z.trains) return;  // as the model is: TRL's reference (trl/models/utils.py prepare_deepspeed, 1.12: stage 0)
  z.parameters += (flat - trained.all) * z.element;
  z.sub_groups = {piece};
  z.buckets_at_end = z.stage == 1 && !t.zero.overlap_comm;
  z.reduces_last = z.stage == 1 && t.zero.overlap_comm;
  const std::int64_t buckets = t.zero.contiguous_gradients ? (t.zero.overlap_comm ? 2 : 1) : 0;
  z.bucket = buckets * t.zero.reduce_bucket * z.element;
  z.offset.assign(tape.leaves.size(), 0);
  z.stride.assign(tape.leaves.size(), 0);
  std::int64_t start = 0;
  for (std::size_t s = 0; s < tape.stations.size(); ++s) {
    std::int64_t unit = 0;
    for (std::size_t i = 0; i < tape.leaves.size(); ++i) {
      if (tape.leaves[i].station != s || !tape.leaves[i].trainable) continue;
      z.offset[i] = start + unit;
      unit += tape.leaves[i].elements();
    }
    for (std::size_t i = 0; i < tape.leaves.size(); ++i)
      if (tape.leaves[i].station == s) z.stride[i] = unit;
    start += unit * std::max<std::int64_t>(1, tape.stations[s].count);
  }
  const bool in_fp32 = z.reduced != z.element;
  // The rank with the most: parameters of which it has a piece count whole.
  std::int64_t at = 0;
  std::vector<std::int64_t> held(static_cast<std::size_t>(z.ranks), 0), largest_piece(held), kept(held);
  for (const std::int64_t n : trained.elements) {
    for (std::int64_t rank = at / piece; rank < z.ranks && rank * piece < at + n; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      held[r] += n;
      // stage 1 keeps other ranks' gradients that are larger than a bucket until backward is over, stage 2 without a 16-bit mode
      // its own
      const bool large = n > t.zero.reduce_bucket;
      kept[r] += (in_fp32 ? !large : z.stage == 1 && large) ? 0 : n;
      largest_piece[r] = std::max(largest_piece[r], std::min(at + n, (rank + 1) * piece) - std::max(at, rank * piece));
    }
    at += n;
  }
  // A tied table's two gradients and their sum are the highest moment, in front of the reduction of what the first rank keeps.
  const std::vector<std::int64_t>& decides = tape.tied ? held : kept;
  z.rank = std::max_element(decides.begin(), decides.end()) - decides.begin();
  // what is kept beside the bucket lies highest where it comes first: backward begins at the end
  if (in_fp32 && !tape.tied) z.rank = decides.rend() - std::max_element(decides.rbegin(), decides.rend()) - 1;
  z.in_partition = held[static_cast<std::size_t>(z.rank)] * z.element;
  // Another rank may be the highest in the step, and yet another with the norm.
  const Bytes most = *std::max_element(held.begin(), held.end()) * z.element;
  z.more_in_step = most - z.in_partition;
  for (std::size_t r = 0; r < held.size(); ++r)
    z.norm = std::max(z.norm, largest_piece[r] * kDouble - (most - held[r] * z.element));
  if (in_fp32) gradients_in_fp32(z, piece, *std::max_element(largest_piece.begin(), largest_piece.end()));
  // flattened beside the parameters; later two copies of the piece: the clone in the model's format and its fp32 copy
  z.at_load = std::max(flat * z.element, z.offloads_optimizer ? piece * z.element : Bytes{0});
  if (!z.offloads_optimizer) return;
  z.gpu_staging = trained.largest * z.element;
  z.host_parameters = piece * z.element;  // the updated piece in the model's format
  z.host_gradients = piece * kFp32Bytes + trained.largest * z.element;
}

/// _create_fp16_sub_groups
std::vector<std::int64_t> sub_groups(const std::vector<std::int64_t>& shards, std::int64_t most) {
  std::vector<std::int64_t> out;
  const std::int64_t all = std::accumulate(shards.begin(), shards.end(), std::int64_t{0});
  if (most >= all) return {all};
  std::int64_t now = 0;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    now += shards[i];
    if (now < most && i + 1 < shards.size()) continue;
    out.push_back(now);
    now = 0;
  }
  return out;
}

/// Actions of the coordinator, put where a segment is cut.
void put(ZeroPass& pass, const ZeroPlace& place, const std::vector<ZeroAction>& actions) {
  if (actions.empty()) return;
  auto& stops = pass[place.station][static_cast<std::size_t>(place.unit)];
  if (stops.empty() || stops.back().at != place.at) stops.push_back({place.at, {}});
  stops.back().actions.insert(stops.back().actions.end(), actions.begin(), actions.end());
}

/// Of KTO. Every forward pass of the whole model begins the coordinator's record anew (parameter_offload.py
/// setup_zero_stage3_hooks, 0.19.8): the one without gradients that comes first is what is known when the trained one begins, and
/// the backward pass, which is not in it, gathers nothing ahead and keeps nothing.
ZeroTrace trace_known_forward(const std::vector<ZeroParameter>& parameters, const ZeroModules& modules, Zero limits,
                              bool one_by_one) {
  std::size_t turn = 0;
  while (turn < modules.calls.size() && !(modules.calls[turn].moment == UseMoment::begins && modules.places[turn].backward))
    ++turn;
  const auto middle = modules.calls.begin() + static_cast<std::ptrdiff_t>(turn);
  const std::vector<ZeroCall> forward(modules.calls.begin(), middle), backward(middle, modules.calls.end());
  ZeroTrace out = trace_gathers(parameters, forward, limits, one_by_one);
  limits.prefetch_bucket = limits.max_reuse_distance = 0;
  ZeroTrace rest = trace_gathers(parameters, backward, limits, one_by_one);
  const int groups = static_cast<int>(out.groups.size());
  const auto renumber = [groups](std::vector<ZeroAction>& actions) {
    for (ZeroAction& a : actions)
      if (a.kind == ZeroAction::Kind::gather_together || a.kind == ZeroAction::Kind::drop_together) a.of += groups;
  };
  for (std::vector<ZeroAction>& actions : rest.actions) renumber(actions);
  renumber(rest.at_end);
  if (!rest.actions.empty()) rest.actions.front().insert(rest.actions.front().begin(), out.at_end.begin(), out.at_end.end());
  out.actions.insert(out.actions.end(), rest.actions.begin(), rest.actions.end());
  out.groups.insert(out.groups.end(), rest.groups.begin(), rest.groups.end());
  out.at_end = std::move(rest.at_end);
  return out;
}

/// Families whose block of experts DeepSpeed takes as one module, unless its settings say otherwise
/// (runtime/zero/leaf_module_config.py, DEFAULT_LEAF_MODULE_CLASSES, 0.19.8).
bool is_one_module(std::string_view family) { return family == "mixtral" || family == "qwen2_moe" || family == "qwen3_moe"; }

/// Stacks that a layer's forward pass saves, of all layers.
Bytes saved_experts(const Tape& tape, const ZeroModules& modules, const std::vector<DType>& storage, std::int64_t ranks) {
  std::vector<bool> saved(static_cast<std::size_t>(modules.count), false);
  for (std::size_t i = 0; i < modules.calls.size(); ++i)
    for (const int p : modules.calls[i].saved)
      if (!modules.places[i].backward) saved[static_cast<std::size_t>(p)] = true;
  Bytes out = 0;
  for (std::size_t i = 0; i < tape.leaves.size(); ++i)
    for (std::int64_t u = 0; u < std::max<std::int64_t>(1, tape.stations[tape.leaves[i].station].count); ++u)
      if (saved[static_cast<std::size_t>(modules.parameter(i, u))] && ranks > 1)
        out += bytes_of(ceil_div(tape.leaves[i].elements(), ranks) * ranks, storage[i]);
  return out;
}

/// Stage 3: every parameter is split by itself.
void split_parameters(ZeroPlan& z, const Tape& tape, const Trainer& t, const std::vector<DType>& storage,
                      std::int64_t micro_batches, std::string_view family) {
  const Trained trained = trained_of(tape);
  std::vector<std::int64_t> shards;
  std::int64_t mine = 0, largest = 0;
  for (const std::int64_t n : trained.elements) {
    shards.push_back(ceil_div(n, z.ranks));
    mine += shards.back();
    largest = std::max(largest, shards.back());
  }
  z.sub_groups = sub_groups(shards, t.zero.sub_group);
  const ZeroModules modules = zero_modules(tape, {.detaches = t.recompute != Recompute::none && !t.reentrant,
                                                  .views = t.experts != Experts::batched_mm,
                                                  .blocks = is_one_module(family)});
  z.waits = modules.waits;
  z.saved_experts = saved_experts(tape, modules, storage, z.ranks);
  std::vector<ZeroParameter> parameters(static_cast<std::size_t>(modules.count));
  z.gathered.resize(parameters.size());
  Bytes shard_bytes = 0;
  Zero limits = t.zero;
  for (std::size_t i = 0; i < tape.leaves.size(); ++i) {
    const TapeLeaf& leaf = tape.leaves[i];
    const std::int64_t n = leaf.elements(), shard = ceil_div(n, z.ranks);
    const bool small = n <= t.zero.persistence_threshold, stays = small || modules.outside[i];
    const std::int64_t units = tape.stations[leaf.station].count;
    shard_bytes += bytes_of(shard, storage[i]) * units;
    const bool copied = z.ranks > 1 || z.offloads_parameters;
    const Bytes whole = copied ? bytes_of(shard * z.ranks, storage[i]) : 0;
    (modules.outside[i] && !small ? z.outside : z.persistent) += stays ? whole * units : 0;
    // counted by the pass that gathers it, which is the first one behind a step
    if (modules.outside[i] && !small && micro_batches == 1) limits.max_live -= n;
    for (std::int64_t u = 0; u < units; ++u) {
      const auto number = static_cast<std::size_t>(modules.parameter(i, u));
      parameters[number] = {n, stays, !leaf.trainable};
      z.gathered[number] = {i, u, whole, z.offloads_parameters && z.ranks > 1 ? bytes_of(shard, storage[i]) : 0};
    }
  }
  (z.offloads_parameters ? z.host_parameters : z.parameters) = shard_bytes;
  const bool knows_forward = z.trains && is_kto(t.head);
  const ZeroTrace trace = knows_forward ? trace_known_forward(parameters, modules, limits, z.ranks == 1)
                                        : trace_gathers(parameters, modules.calls, limits, z.ranks == 1);
  for (const auto& members : trace.groups) {
    ZeroGroup group;
    for (const int p : members) {
      group.whole += z.gathered[static_cast<std::size_t>(p)].whole;
      group.shard += z.gathered[static_cast<std::size_t>(p)].shard;
    }
    z.groups.push_back(group);
  }
  z.at_end = trace.at_end;
  for (ZeroPass* pass : {&z.forward, &z.backward}) {
    pass->resize(tape.stations.size());
    for (std::size_t s = 0; s < pass->size(); ++s)
      (*pass)[s].resize(static_cast<std::size_t>(std::max<std::int64_t>(1, tape.stations[s].count)));
  }
  for (const auto& actions : trace.actions)
    z.gathers_again =
        z.gathers_again || std::any_of(actions.begin(), actions.end(), [](const ZeroAction& action) { return action.again; });
  for (std::size_t i = 0; i < trace.actions.size(); ++i)
    put(modules.places[i].backward ? z.backward : z.forward, modules.places[i], trace.actions[i]);
  if (!z.trains) return;
  z.bucket = t.zero.contiguous_gradients ? t.zero.reduce_bucket * z.reduced : 0;
  (z.offloads_optimizer ? z.host_gradients : z.gradients) = mine * z.reduced;
  z.norm = (z.offloads_optimizer ? std::min(largest, kNormPart) : largest) * kDouble;
  const std::int64_t most = *std::max_element(z.sub_groups.begin(), z.sub_groups.end());
  if (z.offloads_optimizer)
    z.host_gradients += mine * kFp32Bytes;
  else
    z.at_load = most * kFp32Bytes;  // `converted.clone()`
}

}  // namespace

ZeroPlan zero_plan(const Tape& tape, const Trainer& t, const std::vector<DType>& storage, bool trains, std::int64_t micro_batches,
                   std::string_view family) {
  ZeroPlan z;
  z.stage = t.zero.stage;
  z.ranks = t.layout.data * t.layout.context;
  z.trains = trains;
  z.element = bytes_of(1, t.storage);
  z.reduced = bytes_of(1, t.reduce);
  z.bucket_elements = t.zero.reduce_bucket;
  z.contiguous = t.zero.contiguous_gradients;
  z.offloads_optimizer = t.zero.offload_optimizer;
  z.offloads_parameters = t.zero.offload_parameters;
  z.optimizer_form_copies = copies_of_step(t);
  if (z.stage == 3)
    split_parameters(z, tape, t, storage, micro_batches, family);
  else
    flat_partitions(z, tape, t, storage);
  if (!trains) return z;
  const std::int64_t mine = std::accumulate(z.sub_groups.begin(), z.sub_groups.end(), std::int64_t{0});
  (z.offloads_optimizer ? z.host_master : z.master) = mine * kFp32Bytes;
  (z.offloads_optimizer ? z.host_states : z.states) = mine * kFp32Bytes * states_per_element(t);
  return z;
}

}  // namespace oomplan
