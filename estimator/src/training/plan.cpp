#include "training/plan.hpp"

#include <algorithm>

#include "layers/liger.hpp"
#include "training/optimizers.hpp"

namespace oomplan {
namespace {

std::int64_t shard_elements(const TapeLeaf& leaf, std::int64_t ranks) {
  // FSDP2 shards the first axis and pads it: torch/distributed/fsdp/_fully_shard/_fsdp_param.py
  const std::int64_t rows = leaf.shape.empty() ? 1 : leaf.shape[0];
  return ceil_div(rows, ranks) * (leaf.elements() / std::max<std::int64_t>(rows, 1));
}

UnitBytes bytes_of_unit(const ShardUnit& u, const Trainer& t, std::int64_t ranks) {
  UnitBytes b;
  b.resident = u.resident;
  b.upload = t.cpu_offload_policy ? b.resident : 0;
  b.unsharded = bytes_of(u.shard * ranks, t.compute);
  b.cast = bytes_of(ranks > 1 ? u.cast : u.largest_cast, t.compute);
  b.gathered = ranks > 1 ? b.unsharded : 0;
  b.reduce_input = bytes_of(u.trained_shard * ranks, t.reduce);
  b.reduce_output = ranks > 1 ? bytes_of(u.trained_shard, t.reduce) : 0;
  b.gradient = u.trained_resident;
  b.accumulated = bytes_of(u.trained, t.reduce);
  b.kept_ahead = bytes_of(u.ahead, t.compute);
  b.kept_rest = bytes_of(u.sliced - u.ahead, t.compute);
  return b;
}

/// Adapters have a format of their own; gradients and states follow what they belong to.
DType storage_of(const TapeLeaf& leaf, const Trainer& t) {
  const bool adapter = t.lora.rank > 0 && leaf.trainable;
  return adapter && t.lora.format == AdapterFormat::fp32 ? DType::fp32 : t.storage;
}

void put(ShardUnit& u, const TapeLeaf& leaf, DType storage, DType compute, std::int64_t ranks, std::int64_t reshard_ranks) {
  const std::int64_t shard = shard_elements(leaf, ranks);
  const Bytes bytes = bytes_of(shard, storage);
  if (reshard_ranks > 0) {
    const std::int64_t slice = shard * ranks / reshard_ranks;
    u.ahead = std::max(u.ahead, u.sliced + slice - u.shard * ranks);
    u.sliced += slice;
  }
  u.shard += shard;
  u.resident += bytes;
  if (storage != compute) {
    u.cast += shard;
    u.largest_cast = std::max(u.largest_cast, shard);
  }
  if (!leaf.trainable) return;
  u.trained += leaf.elements();
  u.trained_shard += shard;
  u.trained_resident += bytes;
}

/// The trained parameters, in the order of the model.
std::vector<TrainedTensor> trained_tensors(const Tape& tape, const Trainer& t, std::int64_t ranks) {
  std::vector<TrainedTensor> out;
  for (const auto& leaf : tape.leaves) {
    if (!leaf.trainable) continue;
    const Station& station = tape.stations[leaf.station];
    TrainedTensor one{leaf.shape, shard_elements(leaf, ranks), storage_of(leaf, t), station.count};
    if (!one.shape.empty()) one.shape[0] = ceil_div(one.shape[0], ranks);
    one.matrix_of_a_layer = station.place == StationPlace::layers && leaf.shape.size() == 2;
    one.embedding = station.place == StationPlace::embedding;
    out.push_back(std::move(one));
  }
  return out;
}

/// Under FSDP2 adapters are cast to the compute dtype like everything else; one device runs them as they are stored. Checkpoints
/// need an input with a gradient, and the RL frameworks ask for one in any case.
AdapterOptions adapter_options(const Trainer& t, EngineKind engine) {
  AdapterOptions o;
  if (t.lora.rank == 0) return o;
  o.rank = t.lora.rank;
  o.targets = t.lora.targets;
  o.dtype = engine != EngineKind::fsdp2 && t.lora.format == AdapterFormat::fp32 ? DType::fp32 : t.compute;
  o.dropout = t.lora.dropout > 0;
  o.input_gradients = t.recompute != Recompute::none || t.framework != Framework::torch;
  return o;
}

KernelOptions kernel_options(const Trainer& t, EngineKind engine, bool internals) {
  KernelOptions k;
  k.kernels = t.kernels;
  k.framework = t.framework;
  k.parameters = t.compute;
  k.autocast = t.autocast;
  k.casts_layer_inputs = t.compute != t.storage;
  k.padding_mask = t.padding_mask;
  k.sdpa_math = t.sdpa_math;
  k.several_sequences = t.sequences_per_micro_batch > 1;
  k.ulysses = t.layout.context;
  k.adapters = adapter_options(t, engine);
  k.kernel_internals = internals;
  k.liger = {t.liger.rope, t.liger.rms_norm, t.liger.swiglu, liger_code(t.liger.version).value_or(LigerCode{}), 132};
  if (!internals) k.liger.multiprocessors = 1;  // what Liger takes a device without multiprocessors for
  return k;
}

/// torch/nn/parallel/distributed.py, 2.13: _BucketConfig; the first bucket is small only where no size is given
void bucket_rules(TrainPlan& p, const Trainer& t) {
  constexpr std::int64_t kDefault = 25;
  p.bucket_views = t.gradient_as_bucket_view;
  p.bucket_cap = (t.bucket_cap_mb > 0 ? t.bucket_cap_mb : kDefault) * kMiB;
  p.first_bucket_cap = t.bucket_cap_mb > 0 ? p.bucket_cap : kMiB;
}

}  // namespace

PassCounts pass_counts(const Trainer& t, std::int64_t tokens, LossHead head, const Architecture* sizes) {
  PassCounts p;
  p.counts.b = std::max<std::int64_t>(1, t.sequences_per_micro_batch);
  const std::int64_t whole = t.sequences_per_micro_batch > 0 ? t.sequence_tokens : tokens;
  p.counts.s = ceil_div(std::max<std::int64_t>(1, whole), t.layout.context);
  p.counts.k = t.logits_to_keep > 0 ? std::min(p.counts.s, t.logits_to_keep) : p.counts.s;
  const std::int64_t rows = p.counts.b * p.counts.k;
  if (head == LossHead::liger_fused_ce && sizes == nullptr) throw Defect("chunks of a fused head without the model's sizes");
  const std::int64_t chunk =
      head == LossHead::liger_fused_ce ? liger::fused_head_rows(rows, sizes->hidden, sizes->vocab) : chunk_rows(head);
  p.chunks = chunk > 0 ? ceil_div(rows, chunk) : 1;
  p.counts.e = chunk > 0 ? std::min(rows, chunk) : 1;
  p.counts.n = p.chunks;
  return p;
}

PassOptions train_pass(const Trainer& t, EngineKind engine, const Architecture& a, bool critic, std::int64_t tokens,
                       bool internals) {
  PassOptions o;
  o.kernels = kernel_options(t, engine, internals);
  o.training = true;
  o.recompute = t.recompute;
  o.reentrant = t.reentrant;
  o.head = critic ? LossHead::value : t.head;
  o.keep_outputs = t.keep_outputs;
  o.slice_hidden = t.logits_to_keep > 0;
  o.chunks = static_cast<int>(std::min<std::int64_t>(4, pass_counts(t, tokens, o.head, &a).chunks));
  o.critic = critic;
  return o;
}

PassOptions log_prob_pass(const Trainer& t, EngineKind engine, const Architecture& a, bool critic, std::int64_t tokens,
                          bool internals) {
  PassOptions o = train_pass(t, engine, a, critic, tokens, internals);
  o.training = false;
  o.recompute = Recompute::none;
  o.reentrant = false;
  return o;
}

TrainPlan make_plan(const Architecture& a, const Trainer& t, EngineKind engine, bool critic, bool trains, const TrainTapes& tapes,
                    std::int64_t micro_batches) {
  const LossHead head = critic ? LossHead::value : t.head;
  TrainPlan p;
  p.train = trains ? tapes.train.get() : nullptr;
  p.log_probs = tapes.log_probs.get();
  p.train_counts = pass_counts(t, t.tokens_per_micro_batch, head, &a);
  p.log_prob_counts = pass_counts(
      t, t.logprob_tokens_per_micro_batch > 0 ? t.logprob_tokens_per_micro_batch : t.tokens_per_micro_batch, head, &a);
  p.sharded = engine == EngineKind::fsdp2;
  p.ranks = p.sharded ? t.layout.data * t.layout.context / std::max<std::int64_t>(1, t.replicas) : 1;
  p.trains = trains;
  p.micro_batches = std::max<std::int64_t>(1, micro_batches);
  p.reshard_layers = t.reshard_after_forward;
  p.reshard_root = t.root_reshard;
  const bool fewer = t.reshard_after_forward && t.reshard_ranks > 1 && t.reshard_ranks < p.ranks;
  p.reshard_ranks = fewer ? t.reshard_ranks : 0;
  p.forward_prefetch = t.forward_prefetch && p.ranks > 1;
  p.sync_every = t.gradient_sync_every_micro_batch;
  p.offload_parameters = t.offload_parameters;
  p.offload_optimizer = t.offload_optimizer;
  p.cpu_offload = t.cpu_offload_policy;
  if (engine == EngineKind::ddp && trains) bucket_rules(p, t);
  p.loss_inside = inside_model(head);
  const DType trained_in = t.lora.rank > 0 && t.lora.format == AdapterFormat::fp32 ? DType::fp32 : t.storage;
  p.casts_gradients = trained_in != t.reduce;

  const Tape& tape = p.train != nullptr ? *p.train : *p.log_probs;
  std::vector<ShardUnit> units(tape.stations.size());
  ShardUnit root;
  p.wrapped.assign(tape.stations.size(), false);
  for (std::size_t s = 0; s < tape.stations.size(); ++s) {
    const auto place = tape.stations[s].place;
    // a tied embedding stays in the root, where the head can reach it (verl utils/fsdp_utils.py apply_fsdp2; AReaL the same)
    p.wrapped[s] = place == StationPlace::layers || (!tape.tied && place == StationPlace::embedding && t.wrap_embedding) ||
                   (!tape.tied && place == StationPlace::head && t.wrap_head);
  }
  std::int64_t parameters = 0, largest = 0;
  Bytes trained = 0;
  p.last_leaf.assign(tape.stations.size(), -1);
  for (std::size_t i = 0; i < tape.leaves.size(); ++i) {
    const auto& leaf = tape.leaves[i];
    const DType storage = storage_of(leaf, t);
    p.storage.push_back(storage);
    put(p.wrapped[leaf.station] ? units[leaf.station] : root, leaf, storage, t.compute, p.ranks, p.reshard_ranks);
    const std::int64_t copies = tape.stations[leaf.station].count;
    const Bytes bytes = bytes_of(shard_elements(leaf, p.ranks), storage) * copies;
    p.resident += bytes;
    parameters += leaf.elements() * copies;
    if (leaf.trainable) {
      (p.wrapped[leaf.station] ? p.last_leaf[leaf.station] : p.root_last_leaf) = static_cast<int>(i);
      trained += bytes;
    }
    largest = std::max(largest, leaf.elements());
  }
  for (const auto& u : units) p.units.push_back(bytes_of_unit(u, t, p.ranks));
  p.root = bytes_of_unit(root, t, p.ranks);
  p.gradients = trains ? trained : 0;
  p.buckets = trains && engine == EngineKind::ddp ? trained : 0;
  if (trains) {
    const OptimizerBytes cost = optimizer_bytes(t, trained_tensors(tape, t, p.ranks));
    p.optimizer = cost.states;
    p.optimizer_managed = cost.managed;
    p.optimizer_steps = cost.steps;
    p.step_transient = cost.transient;
  }
  p.full_compute = bytes_of(parameters, t.compute);
  p.largest_tensor = bytes_of(largest, t.compute);
  std::int64_t rotary = 0;
  for (const auto& run : a.runs) rotary = std::max(rotary, run.layer.mixer.rotary_dim);
  p.buffers = 4 * rotary;  // inv_freq and original_inv_freq: d/2 fp32 each
  return p;
}

}  // namespace oomplan
