#include "training/plan.hpp"

#include <algorithm>
#include <numeric>

#include "catalog/facts.hpp"
#include "catalog/wide_routers.hpp"
#include "job/kernel_sets.hpp"
#include "layers/archon.hpp"
#include "layers/experts.hpp"
#include "layers/families.hpp"
#include "layers/gptj.hpp"
#include "layers/heads_trl.hpp"
#include "layers/liger.hpp"
#include "layers/lightning.hpp"
#include "layers/litgpt.hpp"
#include "layers/litgpt_prefix.hpp"
#include "layers/preamble.hpp"
#include "layers/titan.hpp"
#include "layers/torchtune.hpp"
#include "layers/vision.hpp"
#include "training/adapters.hpp"
#include "training/optimizers.hpp"
#include "training/unit_formats.hpp"

namespace oomplan {
namespace {

std::int64_t shard_elements(const TapeLeaf& leaf, std::int64_t ranks, bool base_whole = false) {
  const std::int64_t rows = leaf.shape.empty() ? 1 : leaf.shape[0];
  return rows_of_shard(leaf, ranks, base_whole) * (leaf.elements() / std::max<std::int64_t>(rows, 1));
}

UnitBytes bytes_of_unit(const ShardUnit& u, const Trainer& t, std::int64_t ranks) {
  UnitBytes b;
  b.resident = u.resident;
  b.upload = t.cpu_offload_policy ? b.resident : 0;
  b.unsharded = (u.computed - bytes_of(u.float8, t.compute) + u.float8) * ranks;
  b.cast = bytes_of(ranks > 1 ? u.cast - u.float8 : u.largest_cast, t.compute) + u.float8;
  b.scaled = 2 * bytes_of(u.largest_float8, DType::fp32);  // _ToFloat8ConstrFunc: tensor.to(float32) * scale, and that clamped
  b.gathered = ranks > 1 ? b.unsharded : 0;
  b.reduce_input = u.reduced * ranks;
  b.reduce_output = ranks > 1 ? u.reduced : 0;
  b.gradient = u.trained_resident;
  b.casts_reduced = u.casts_reduced;
  b.accumulated = u.unreduced;
  b.kept_ahead = u.ahead;
  b.kept_rest = u.sliced - u.ahead;
  return b;
}

/// Adapters have a format of their own; gradients and states follow what they belong to.
DType storage_of(const TapeLeaf& leaf, const Trainer& t) {
  if (leaf.packed != PackedLeaf::none || leaf.stored_as_is) return leaf.dtype;
  const bool adapter = t.lora.rank > 0 && (leaf.trainable || leaf.unreached) && !leaf.passive && !leaf.of_base;
  if (!adapter && t.lora.base.prepare_kbit) return t.lora.base.casts_heads ? leaf.dtype : DType::fp32;
  return adapter && t.lora.format == AdapterFormat::fp32 ? DType::fp32 : t.storage;
}

/// torchao's WeightWithDynamicFloat8CastTensor (torchao/float8/fsdp_utils.py): what its fsdp_pre_all_gather hands to FSDP2.
void put_float8(ShardUnit& u, const TapeLeaf& leaf, std::int64_t ranks) {
  const std::int64_t shard = shard_elements(leaf, ranks);
  u.float8 += shard;
  u.largest_float8 = std::max(u.largest_float8, shard);
}

void put(ShardUnit& u, const TapeLeaf& leaf, DType storage, const Trainer& t, std::int64_t ranks, std::int64_t reshard_ranks) {
  // a packed matrix is stored in the compute format (bnb_4bit_quant_storage), which has 16 bits
  const bool packed = leaf.packed == PackedLeaf::weight;
  if (packed) storage = t.compute;
  const auto [compute, reduce] = unit_formats(t, storage);
  const std::int64_t shard = packed ? ceil_div(shard_elements(leaf, ranks), 2) : shard_elements(leaf, ranks);
  const Bytes bytes = bytes_of(shard, storage);
  if (reshard_ranks > 0) {
    const Bytes slice = bytes_of(shard * ranks / reshard_ranks, compute);
    u.ahead = std::max(u.ahead, u.sliced + slice - u.computed * ranks);
    u.sliced += slice;
  }
  u.shard += shard;
  u.resident += bytes;
  u.computed += bytes_of(shard, compute);
  if (storage != compute) {
    u.cast += shard;
    u.largest_cast = std::max(u.largest_cast, shard);
  }
  if (!leaf.trainable) return;
  u.unreduced += bytes_of(leaf.elements(), reduce);
  u.reduced += bytes_of(shard, reduce);
  u.trained_resident += bytes;
  u.casts_reduced = storage != reduce;
}

/// The trained parameters, in the order of the model.
std::vector<TrainedTensor> trained_tensors(const Tape& tape, const Trainer& t, std::int64_t ranks) {
  std::vector<TrainedTensor> out;
  for (const auto& leaf : tape.leaves) {
    if (!leaf.trainable || leaf.shared) continue;
    const Station& station = tape.stations[leaf.station];
    TrainedTensor one{leaf.shape, shard_elements(leaf, ranks), storage_of(leaf, t), station.count};
    if (!one.shape.empty()) one.shape[0] = ceil_div(one.shape[0], ranks);
    one.matrix_of_a_layer = station.place == StationPlace::layers && leaf.shape.size() == 2;
    one.embedding = station.place == StationPlace::embedding;
    out.push_back(std::move(one));
  }
  return out;
}

/// FullyShardedDataParallel.clip_grad_norm_ brings the norm of the host's gradients to the device: four fp32 scalars at once.
constexpr Bytes kClipScalars = 4 * 4;

/// What clipping holds at its highest, numbers alone: a norm for each gradient, and those side by side
/// (torch/nn/utils/clip_grad.py _get_total_norm, 2.13). FSDP1 takes norms in fp32 (_get_grad_norm); those of DTensors are reduced
/// one by one and stand side by side four times.
Bytes clip_norms(const std::vector<TrainedTensor>& trained, const Trainer& t, EngineKind engine) {
  if (!t.clip || engine == EngineKind::deepspeed) return 0;
  Bytes norms = 0, widest = 0;
  for (const TrainedTensor& one : trained) {
    const Bytes norm = bytes_of(1, engine == EngineKind::fsdp1 ? DType::fp32 : one.storage);
    norms += norm * one.copies;
    widest = std::max(widest, norm);
  }
  return shards_by_fsdp2(engine) ? 5 * norms : 2 * norms + widest;
}

/// ProcessGroupNCCL recorded its stream on what it sent (TORCH_NCCL_AVOID_RECORD_STREAMS was off by default before 2.8,
/// torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp): such a tensor is free for the CPU, and not yet for the allocator.
bool records_streams(const Trainer& t) {
  return !t.loop.of_framework && !t.framework_version.empty() && compare_versions(t.framework_version, "2.8") < 0;
}

/// limit_all_gathers: in front of a gather the CPU waits for the oldest event of _free_event_queue when there are two
/// (torch/distributed/fsdp/_limiter_utils.py, _runtime_utils.py `_unshard`, 2.2 to 2.13). A step adds as many as it takes, and
/// the root's last ones are left for the next, so that a queue of three goes into a gather: two units freed last may still be in
/// use. While units are gathered ahead in backward it is one. With adapters as units an event for each of them lies between.
/// Without the limit nothing makes the CPU wait inside of a pass.
std::uint8_t gathers_in_flight(const TrainPlan& p, bool limited) {
  if (p.ranks == 1) return 0;
  if (!limited) return kAllInFlight;
  if (!p.flat.adapters.empty()) return 0;
  const bool ahead = p.trains && p.backward_prefetch == BackwardPrefetch::pre && !p.units_in_checkpoints;
  return ahead && !p.forward_prefetch ? 1 : 2;
}

Bytes buckets_in_flight(const std::vector<Bytes>& buckets) {
  const auto first = buckets.end() - static_cast<std::ptrdiff_t>(std::min(kBucketsInFlight, buckets.size()));
  return std::accumulate(first, buckets.end(), Bytes{0});
}

/// What is different with flat parameters, once `p` is what it is under FSDP2.
void flatten(TrainPlan& p, const Tape& tape, const Trainer& t) {
  p.forward_prefetch = t.forward_prefetch;
  p.backward_prefetch = t.backward_prefetch;
  p.use_orig_params = t.use_orig_params;
  p.reentrant = t.reentrant && t.recompute != Recompute::none;
  p.units_in_checkpoints = p.reentrant && t.recompute == Recompute::full && checkpoints_units(t);
  p.reshard_ranks = 0;
  p.reshard_root = t.loop.reshards_root;
  p.flat = flat_units(tape, t, p.wrapped, p.storage, p.ranks);
  p.gathers_in_flight = gathers_in_flight(p, t.limit_all_gathers);
  p.records_streams = records_streams(t);
  if (p.records_streams) {
    for (std::size_t s = 0; s < tape.stations.size(); ++s) p.flat.units[s].kept_buckets = buckets_in_flight(p.flat.buckets[s]);
    p.flat.root.kept_buckets = buckets_in_flight(p.flat.buckets.back());
  }
  const auto sum = [&](Bytes FlatBytes::* member) {
    Bytes all = p.flat.root.*member;
    for (std::size_t s = 0; s < tape.stations.size(); ++s) all += p.flat.units[s].*member * tape.stations[s].count;
    return all;
  };
  p.resident = sum(&FlatBytes::resident);
  if (!p.trains) return;
  p.gradients = sum(&FlatBytes::gradient) + sum(&FlatBytes::adapter_gradients);
  const OptimizerBytes cost = optimizer_bytes(t, p.flat.tensors);
  p.optimizer = cost.states;
  p.optimizer_managed = cost.managed;
  p.optimizer_steps = cost.steps;
  p.step_transient = std::max(cost.transient, clip_norms(p.flat.tensors, t, EngineKind::fsdp1));
  p.states_by_tensor = element_by_element(t.optimizer) && !p.flat.adapters.empty() && !t.cpu_offload_policy;
  if (t.cpu_offload_policy) p.step_transient = t.clip ? kClipScalars : 0;
}

/// Stage 3 without what it knows of the step before: nothing is gathered ahead, nothing kept. Every forward pass of the whole
/// model begins the coordinator's record anew, and one without adapters calls other modules than the one with them that follows
/// it (deepspeed/runtime/zero/parameter_offload.py setup_zero_stage3_hooks, partitioned_param_coordinator.py trace_prologue,
/// 0.19.8).
void forget_trace(Zero& zero) {
  zero.prefetch_bucket = 0;
  zero.max_reuse_distance = 0;
}

/// Under DeepSpeed everything else of the plan is that of one device.
void make_zero(TrainPlan& p, const Architecture& a, const Tape& tape, Trainer t) {
  if (t.reference == ReferencePass::adapters_off) forget_trace(t.zero);
  ZeroPlan zero = zero_plan(tape, t, p.storage, p.trains, p.micro_batches, a.family);
  if (t.offload_checkpoints) zero.checkpoint = bytes_of(p.train_counts.counts.b * p.train_counts.counts.s * a.hidden, t.compute);
  p.resident = zero.parameters + zero.persistent + zero.master + zero.gradients + zero.gpu_staging;
  if (zero.stage == 3) p.resident += zero.bucket;
  p.optimizer = zero.states;
  p.optimizer_steps = 0;
  p.zero = std::make_shared<const ZeroPlan>(std::move(zero));
}

/// What is needed to unpack a base: FSDP1 neither flattens it nor takes it to the host.
Bytes packed_statistics(const Tape& tape) {
  Bytes all = 0;
  for (const auto& leaf : tape.leaves)
    if (leaf.packed == PackedLeaf::statistics) all += bytes_of(leaf.elements(), leaf.dtype) * tape.stations[leaf.station].count;
  return all;
}

/// A model without adapters, of which nothing is trained, sharded as the policy is.
std::shared_ptr<const ReferencePlan> reference_plan(const Architecture& a, const Trainer& t, EngineKind engine,
                                                    const std::shared_ptr<const Tape>& tape) {
  Trainer alone = t;
  alone.lora.rank = 0;
  alone.reference = ReferencePass::none;
  alone.logprob_tokens_per_micro_batch = 0;
  if (t.reference == ReferencePass::adapters_off) forget_trace(alone.zero);
  TrainTapes tapes;
  tapes.log_probs = tape;
  auto out = std::make_shared<ReferencePlan>();
  out->plan = make_plan(a, alone, engine, false, false, tapes, 1);
  out->tape = tape;
  out->apart = t.reference == ReferencePass::model;
  return out;
}

/// torch/nn/parallel/distributed.py, 2.13: _BucketConfig; the first bucket is small only where no size is given
void bucket_rules(TrainPlan& p, const Trainer& t) {
  constexpr std::int64_t kDefault = 25;
  p.bucket_views = t.gradient_as_bucket_view;
  p.bucket_cap = (t.bucket_cap_mb > 0 ? t.bucket_cap_mb : kDefault) * kMiB;
  p.first_bucket_cap = t.bucket_cap_mb > 0 ? p.bucket_cap : kMiB;
  p.rebuilds_buckets = t.static_graph || !t.find_unused_parameters;  // reducer.hpp: should_rebuild_buckets
}

/// FalconMamba's norms without weights have buffers in their place (modeling_falcon_mamba.py, transformers 5.23).
std::int64_t scan_norm_weights(const Architecture& a) {
  const FamilyCode* code = find_family_code(a.family);
  if (code == nullptr || !code->norms_scan) return 0;
  std::int64_t out = 0;
  for (const LayerRun& run : a.runs) out += run.count * (run.layer.mixer.inner + 2 * run.layer.mixer.state_size);
  return out;
}

/// Nothing of the model's own comes behind its output layer.
bool returns_head(const Architecture& a) {
  const FamilyCode* code = find_family_code(a.family);
  return !a.final_softcap && (code == nullptr || (!code->scales_logits && !code->logits_in_fp32));
}

}  // namespace

/// A model that is made from its config alone has tables in fp32: so must one whose packed matrices FSDP1 cuts, because
/// from_pretrained could not make it before 4.39.
Bytes rotary_tables(const Architecture& a, const Trainer& t, bool flattened) {
  if (!of_transformers(t.kernels) || !registers_rotary_tables(t.transformers_version, a.family)) return 0;
  std::int64_t width = 0;
  for (const auto& run : a.runs) width = std::max(width, run.layer.mixer.rotary_dim);
  const bool from_config = flattened && t.lora.base.format != BaseFormat::full;
  return 2 * bytes_of(a.max_positions * width, from_config ? DType::fp32 : t.storage);
}

/// e_score_correction_bias: transformers keeps it in fp32, and nothing shards a buffer (_keep_in_fp32_modules_strict, 5.23).
Bytes correction_buffers(const Architecture& a) {
  const FamilyCode* code = find_family_code(a.family);
  if (code == nullptr || code->correction_is_parameter) return 0;
  std::int64_t numbers = 0;
  for (const auto& [layer, count] : a.runs)
    numbers += layer.feed_forward.correction_bias ? layer.feed_forward.experts * count : 0;
  return bytes_of(numbers, DType::fp32);
}

/// FSDP1 brings those of a layer with its unit.
void put_rotary_tables(TrainPlan& p, const Tape& tape, Bytes of_layer) {
  std::vector<bool> attends(tape.stations.size());
  for (const TapeLeaf& leaf : tape.leaves)
    if (leaf.name.find("self_attn.") != std::string::npos) attends[leaf.station] = true;
  for (std::size_t s = 0; s < attends.size(); ++s) {
    if (!attends[s]) continue;
    if (p.flattened && p.wrapped[s])
      p.flat.units[s].tables = of_layer;
    else
      p.buffers += of_layer * tape.stations[s].count;
  }
}

std::int64_t rows_of_shard(const TapeLeaf& leaf, std::int64_t ranks, bool base_whole) {
  const std::int64_t rows = leaf.shape.empty() ? 1 : leaf.shape[0];
  const bool packed = leaf.packed == PackedLeaf::weight;
  if (ranks == 1 || leaf.packed == PackedLeaf::statistics || (packed && base_whole)) return rows;
  return packed ? 2 * ceil_div(ceil_div(rows, 2), ranks) : ceil_div(rows, ranks);
}

TrainPlan make_plan(const Architecture& a, const Trainer& t, EngineKind engine, bool critic, bool trains, const TrainTapes& tapes,
                    std::int64_t micro_batches) {
  if (engine != EngineKind::fsdp1 && !shards_by_fsdp2(engine) && !(t.cast_parameters && t.cast_gradients)) {
    Trainer without = t;  // a policy is FSDP's
    without.cast_parameters = without.cast_gradients = true;
    return make_plan(a, without, engine, critic, trains, tapes, micro_batches);
  }
  const LossHead head = critic ? LossHead::value : t.head;
  TrainPlan p;
  p.train = trains ? tapes.train.get() : nullptr;
  p.log_probs = tapes.log_probs.get();
  p.train_counts = pass_counts(t, t.tokens_per_micro_batch, head, a);
  p.log_prob_counts =
      pass_counts(t, t.logprob_tokens_per_micro_batch > 0 ? t.logprob_tokens_per_micro_batch : t.tokens_per_micro_batch, head, a);
  p.flattened = engine == EngineKind::fsdp1;
  p.sharded = p.flattened || shards_by_fsdp2(engine);
  p.ranks = p.sharded ? t.layout.data * t.layout.context / std::max<std::int64_t>(1, t.replicas) : 1;
  p.replicates = shards_by_fsdp2(engine) && t.replicas > 1;
  p.trains = trains;
  p.micro_batches = std::max<std::int64_t>(1, micro_batches);
  p.reshard_layers = t.reshard_after_forward;
  p.reshard_root = t.root_reshard;
  p.reshard_last = t.reshard_last;
  const bool fewer = t.reshard_after_forward && t.reshard_ranks > 1 && t.reshard_ranks < p.ranks;
  p.reshard_ranks = fewer ? t.reshard_ranks : 0;
  p.forward_prefetch = t.forward_prefetch && p.ranks > 1;
  p.sync_every = t.gradient_sync_every_micro_batch || micro_batches <= 1;
  p.offload_parameters = t.offload_parameters;
  p.offload_optimizer = t.offload_optimizer;
  p.cpu_offload = t.cpu_offload_policy;
  if (engine == EngineKind::ddp && trains) bucket_rules(p, t);
  p.loss_inside = inside_model(head);
  p.root_returns_head = returns_head(a) && (!t.output || *t.output == t.compute);  // else it returns a copy
  p.end_of_head = runs_in_chunks(head) ? StationPlace::chunks : StationPlace::loss;
  const DType trained_in = t.lora.rank > 0 && t.lora.format == AdapterFormat::fp32 ? DType::fp32 : t.storage;
  const UnitFormats formats = unit_formats(t, trained_in);
  p.casts_accumulated = formats.compute != formats.reduce;

  const Tape& tape = p.train != nullptr ? *p.train : *p.log_probs;
  std::vector<ShardUnit> units(tape.stations.size());
  ShardUnit root;
  p.wrapped.assign(tape.stations.size(), false);
  for (std::size_t s = 0; s < tape.stations.size(); ++s) {
    const auto place = tape.stations[s].place;
    // a tied embedding stays in the root, where the head can reach it (verl utils/fsdp_utils.py apply_fsdp2; AReaL the same);
    // FSDP1's policies name the layers alone (torch/distributed/fsdp/wrap.py: transformer_auto_wrap_policy)
    const bool apart = !tape.tied && !p.flattened;
    const bool of_root = p.flattened && !tape.stations[s].called;
    p.wrapped[s] = (place == StationPlace::layers && !of_root) ||
                   (place == StationPlace::vision && !p.flattened && has_front_unit(a.tower)) ||
                   (apart && place == StationPlace::positions && t.wrap_embedding && t.loop.joins_images_itself) ||
                   (apart && place == StationPlace::embedding && t.wrap_embedding) ||
                   (apart && place == StationPlace::head && t.wrap_head);
  }
  p.norm_with_head = t.wrap_norm && t.wrap_head && !tape.tied;
  const std::size_t head_station = tape.station_at(StationPlace::head);
  const auto unit_of = [&](const TapeLeaf& leaf) {
    return p.norm_with_head && tape.stations[leaf.station].place == StationPlace::norm ? head_station : leaf.station;
  };
  if (p.sharded && trains && t.layout.tensor > 1)
    p.embedding_part = bytes_of(ceil_div(a.vocab, t.layout.tensor) * a.hidden, t.compute);
  std::int64_t parameters = 0, largest = 0;
  Bytes trained = 0;
  p.last_leaf.assign(tape.stations.size(), -1);
  p.frozen_copies = t.lora.rank > 0 ? t.lora.frozen_copies : 0;
  for (std::size_t i = 0; i < tape.leaves.size(); ++i) {
    const auto& leaf = tape.leaves[i];
    const DType storage = storage_of(leaf, t);
    p.storage.push_back(storage);
    p.shard_bytes.push_back(bytes_of(shard_elements(leaf, p.ranks, t.lora.base.whole), storage));
    const std::size_t unit = unit_of(leaf);
    const bool ignored = leaf.packed == PackedLeaf::weight && t.lora.base.whole;
    if (leaf.packed != PackedLeaf::statistics && !ignored)
      put(p.wrapped[unit] ? units[unit] : root, leaf, storage, t, p.ranks, p.reshard_ranks);
    if (t.float8_all_gather && tape.stations[leaf.station].place == StationPlace::layers && leaf.shape.size() == 2)
      put_float8(units[unit], leaf, p.ranks);
    const std::int64_t copies = tape.stations[leaf.station].count;
    const Bytes bytes = leaf.shared ? 0 : bytes_of(shard_elements(leaf, p.ranks, t.lora.base.whole), storage) * copies;
    p.tied_units = p.tied_units || leaf.shared;
    p.resident += bytes * (leaf.trainable || leaf.unreached ? 1 + p.frozen_copies : 1);
    if (!leaf.shared) parameters += leaf.elements() * copies;
    if (leaf.trainable) {
      (p.wrapped[unit] ? p.last_leaf[unit] : p.root_last_leaf) = static_cast<int>(i);
      trained += bytes;
    }
    largest = std::max(largest, leaf.elements());
  }
  p.base_whole = t.lora.base.whole;
  p.embedding_collects = trains && t.lora.rank > 0 && adapter_options(t, engine, a).input_gradients;
  p.step_every = t.step_every_micro_batch;
  p.keep_gradients = t.keep_gradients;
  if (t.offload_checkpoints && trains && engine != EngineKind::deepspeed) {
    // behind TRL's casts the first layer's comes from the embedding in bf16; those of all others are fp32
    const DType hidden = t.lora.base.prepare_kbit && !p.sharded ? DType::fp32 : t.compute;
    p.host_checkpoint = bytes_of(p.train_counts.counts.b * p.train_counts.counts.s * a.hidden, hidden);
  }
  p.states_by_tensor = trains && !t.cpu_offload_policy && element_by_element(t.optimizer);
  p.state_bytes_of = states_per_element(t);
  for (const auto& u : units) p.units.push_back(bytes_of_unit(u, t, p.ranks));
  p.root = bytes_of_unit(root, t, p.ranks);
  p.gradients = trains ? trained : 0;
  p.buckets = trains && engine == EngineKind::ddp ? trained : 0;
  if (trains) {
    const std::vector<TrainedTensor> all = trained_tensors(tape, t, p.ranks);
    const OptimizerBytes cost = optimizer_bytes(t, all);
    p.optimizer = cost.states;
    p.optimizer_managed = cost.managed;
    p.optimizer_steps = cost.steps;
    p.step_transient = std::max(cost.transient, clip_norms(all, t, engine));
  }
  if (p.flattened) flatten(p, tape, t);
  if (engine == EngineKind::deepspeed) make_zero(p, a, tape, t);
  if (trains && tapes.reference != nullptr) p.reference = reference_plan(a, t, engine, tapes.reference);
  p.full_compute = bytes_of(parameters, t.compute);
  p.largest_tensor = bytes_of(largest, t.compute);
  if (t.kernels == Kernels::archon) {
    p.buffers = archon_buffers(a);
    return p;
  }
  if (t.kernels == Kernels::torchtitan) {
    p.buffers =
        titan_buffers(a, t.sequences_per_micro_batch > 0 ? t.sequence_tokens : t.tokens_per_micro_batch, t.layout.context);
    return p;
  }
  if (is_torchtune(t.kernels)) {
    p.buffers = torchtune_buffers(a);
    return p;
  }
  if (is_litgpt(t.kernels)) {
    p.buffers = litgpt_buffers(a, t.sequences_per_micro_batch > 0 ? t.sequence_tokens : t.tokens_per_micro_batch);
    // Fabric's FSDPPrecision casts the tables too (lightning/fabric/plugins/precision/fsdp.py, 2.2)
    if (p.flattened) p.buffers = p.buffers * bytes_of(1, t.compute) / bytes_of(1, DType::fp32);
    if (t.lora.rank > 0 && has_prefixes(t.lora.kind)) p.buffers += prefix_cache(a, t.lora.rank);
    return p;
  }
  std::int64_t rotary = rotary_width(a);
  for (const auto& run : a.runs) rotary = std::max(rotary, run.layer.mixer.rotary_dim);
  p.buffers = 4 * rotary;  // inv_freq and original_inv_freq: d/2 fp32 each
  p.buffers += tower_buffers(a.tower) + gptj_buffers(a) + lightning_buffers(a, t.storage);
  put_rotary_tables(p, tape, rotary_tables(a, t, p.flattened));
  p.buffers += bytes_of(scan_norm_weights(a), t.storage) + correction_buffers(a);
  if (p.flattened) p.buffers += packed_statistics(tape);
  return p;
}

}  // namespace oomplan
