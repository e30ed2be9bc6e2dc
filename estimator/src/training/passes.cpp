#include "training/passes.hpp"

#include <algorithm>

#include "catalog/facts.hpp"
#include "catalog/wide_routers.hpp"
#include "job/kernel_sets.hpp"
#include "layers/archon.hpp"
#include "layers/compiled_order.hpp"
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

namespace oomplan {

bool checkpoints_units(const Trainer& t) {
  if (t.checkpoint_units) return true;
  const bool fused = FoakOptions{t.foak.rope, t.foak.rms_norm, t.foak.lora}.any();
  return fused && transformers_code(t.transformers_version).value_or(TransformersCode{}).checkpoints_units;
}

namespace {

/// Where Liger does not know a family, its modules stay transformers' own: transformers' Trainer (integrations/liger.py) and
/// AgileRL (agilerl/algorithms/core/base.py _initialize_actors) go on without it.
LigerOptions liger_options(const Trainer& t, const Architecture& a, const KernelInternals& internals) {
  LigerOptions o{t.liger.rope, t.liger.rms_norm, t.liger.swiglu, liger_code(t.liger.version).value_or(LigerCode{})};
  if (const FamilyCode* code = find_family_code(a.family); code != nullptr && code->liger == LigerPatch::none)
    o.rope = o.rms_norm = o.glu = false;
  o.multiprocessors = internals.counted ? internals.multiprocessors : 1;  // what Liger takes a device without any for
  return o;
}

/// verl's forward pass of Qwen3.5 tells layers where the sequences of a packed row begin, that of Qwen3-Next does not
/// (verl/models/transformers/qwen3_5.py, verl/workers/engine/fsdp/transformer_impl.py pass_packed_cu_seqlens, 0.9 and 0.10).
DeltaOptions delta_options(const Trainer& t, const Architecture& a, const KernelInternals& internals) {
  DeltaOptions o;
  o.kernels = t.linear_attention;
  o.multiprocessors = internals.counted ? internals.multiprocessors : 1;
  const bool patched = t.loop.joins_images_itself && !a.tower.kind.empty() && a.family.starts_with("qwen3_5");
  o.patched = patched;
  o.told_nothing = t.loop.joins_images_itself && !patched;
  if (patched && t.sequences_per_micro_batch == 0)
    o.sequence = t.sequence_tokens > 0 ? t.sequence_tokens : std::max<std::int64_t>(1, t.tokens_per_micro_batch);
  return o;
}

KernelOptions kernel_options(const Trainer& t, EngineKind engine, const Architecture& a, const KernelInternals& internals) {
  KernelOptions k;
  k.liger = liger_options(t, a, internals);
  k.foak = {t.foak.rope, t.foak.rms_norm, t.foak.lora};
  k.positions_by_row = t.loop.positions_by_row;
  k.kernels = t.kernels;
  k.exchanges_flat = t.loop.exchanges_flat;
  k.adapters_apart = t.loop.adapters_apart;
  // FSDP2 gathers what is stored in fp32 in the compute format
  k.parameters = t.lora.base.prepare_kbit && !shards_by_fsdp2(engine) ? DType::fp32 : t.compute;
  k.casts_heads = t.lora.base.casts_heads;
  if (of_transformers(t.kernels)) k.release = transformers_code(t.transformers_version).value_or(TransformersCode{});
  // Fabric packs every matrix from fp16 (lightning/fabric/plugins/precision/bitsandbytes.py quantize, 2.2)
  k.packed = packed_options(t.lora.base, is_litgpt(t.kernels) ? DType::fp16 : t.storage);
  k.autocast = t.autocast;
  k.autocasts_to_half = t.autocast && t.autocast_format == DType::fp16;
  k.keeps_formats = engine == EngineKind::single && !t.lora.base.prepare_kbit;
  k.wide_routers = k.keeps_formats && wide_router(a, t.transformers_version) != nullptr;
  const FamilyCode* code = find_family_code(a.family);
  k.wide_buffers = code != nullptr && code->layer_scalar && t.storage == DType::fp32 && t.compute != DType::fp32;
  k.casts_layer_inputs = shards_by_fsdp2(engine) && t.cast_parameters && t.cast_inputs;
  if (shards_by_fsdp2(engine)) k.unit_output = t.output;
  k.casts_embedding_output = k.unit_output && t.wrap_embedding && !a.tied;
  k.casts_head_output = k.unit_output && t.wrap_head && !a.tied;
  k.head_is_unit = shards_by_fsdp2(engine) && t.wrap_head && !a.tied;
  k.casts_parameters = t.compute != t.storage;
  k.views_of_flat = engine == EngineKind::fsdp1;
  k.padding_mask = t.padding_mask;
  k.sdpa_math = t.sdpa_math;
  k.narrow_tables = is_litgpt(t.kernels) && engine == EngineKind::fsdp1 && !t.autocast;
  k.several_sequences = t.sequences_per_micro_batch > 1;
  k.ulysses = t.layout.context;
  k.frozen_keeps_input = engine == EngineKind::deepspeed && t.zero.stage == 3;
  k.ulysses_deepspeed = engine == EngineKind::deepspeed;
  k.tiled_mlp = t.tiled_mlp;
  k.keeps_checkpoints = engine == EngineKind::fsdp1 && t.lora.rank > 0 && checkpoints_units(t);
  k.offload_checkpoints = t.offload_checkpoints;
  k.offload_activations = t.offload_activations;
  k.tensor = t.layout.tensor;
  k.rms_norm = t.rms_norm;
  k.repeat_kv = t.repeat_kv;
  k.tree = t.tree_training;
  k.compile = t.compile;
  k.float8 = t.float8;
  k.float8_gathered = t.float8_all_gather;
  k.adapters = adapter_options(t, engine, a);
  k.vision = vision_pass(t, engine, a);
  k.delta_by_rows = t.loop.joins_images_itself;  // verl: setup.py of 0.9 and 0.10, transformers<5.11
  k.delta = delta_options(t, a, internals);
  k.joins_tables = k.vision.until_5_10 && (a.tower.kind == "qwen2_vl" || a.tower.kind == "qwen2_5_vl");
  k.flash_repeats = k.joins_tables && k.vision.joins_itself && t.sequences_per_micro_batch == 0;
  k.flash_takes_rows = k.flash_repeats && t.tokens_per_micro_batch > t.sequence_tokens;
  k.kernel_internals = internals.counted;
  return k;
}

/// SDPA has no window of its own: transformers 5.23 masking_utils.py, _ignore_causal_mask_sdpa.
bool reaches_past_windows(const KernelOptions& k, const Architecture& a, std::int64_t tokens) {
  if (k.kernels != Kernels::hf_sdpa || k.padding_mask) return false;
  return std::any_of(a.runs.begin(), a.runs.end(), [&](const LayerRun& r) {
    return r.layer.mixer.span != AttentionSpan::full && tokens >= r.layer.mixer.window;
  });
}

/// What kernels make inside of themselves and depends on how many tokens there are.
void count_internals(KernelOptions& k, const Trainer& t, const Architecture& a, const KernelInternals& internals,
                     const TokenCounts& counts) {
  const std::int64_t of_sequence = counts.s * t.layout.tensor;
  const FamilyCode* code = find_family_code(a.family);
  const bool positions_by_sequence = code != nullptr && code->positions_by_sequence;
  k.embedding_sort = embedding_sort(counts.b * of_sequence, a.vocab);
  k.position_sort = embedding_sort((positions_by_sequence ? counts.b : 1) * of_sequence, a.position_rows);
  k.split_keys = split_keys(a, internals.multiprocessors, t.layout.tensor * t.layout.context, counts);
  k.attention_tiles = attention_tiles(k, a, counts, internals.memory);
}

}  // namespace

namespace {

/// What a teacher caches of one token in all layers.
void count_cache(PassOptions& o, const Architecture& teacher) {
  for (const LayerRun& run : teacher.runs) {
    o.teacher_keys += run.count * run.layer.mixer.kv_heads * run.layer.mixer.head_dim;
    o.teacher_values += run.count * run.layer.mixer.kv_heads * run.layer.mixer.value_head_dim;
  }
}

}  // namespace

PassCounts pass_counts(const Trainer& t, std::int64_t tokens, LossHead head, const Architecture& a) {
  PassCounts p;
  p.counts.b = std::max<std::int64_t>(1, t.sequences_per_micro_batch);
  const std::int64_t whole = t.sequences_per_micro_batch > 0 ? t.sequence_tokens : tokens;
  p.counts.s = ceil_div(std::max<std::int64_t>(1, whole), t.layout.context * t.layout.tensor);
  const std::int64_t tokens_of_head =
      p.counts.s * t.layout.tensor;  // tensor parallelism splits them between the layers' halves only
  p.counts.k = t.logits_to_keep > 0 ? std::min(tokens_of_head, t.logits_to_keep) : tokens_of_head;
  if (head == LossHead::agilerl_fused)
    p.counts.k = std::max<std::int64_t>(1, tokens_of_head - 1);  // the last one has no next token
  if (takes_sequences(head)) {
    p.counts.e = head == LossHead::trl_dpo_0_18 ? p.counts.k : std::max<std::int64_t>(1, p.counts.k - 1);
    p.counts.m = rows_together(head, p.counts.b, p.counts.e);
    p.chunks = p.counts.n = p.counts.b;
    return p;
  }
  if (head == LossHead::trl_gkd) {
    p.counts.e = std::max<std::int64_t>(1, p.counts.k - 1);
    return p;
  }
  const std::int64_t rows = p.counts.b * p.counts.k;
  const std::int64_t parts = chunks_of_sequence(head);
  const std::int64_t chunk = head == LossHead::litgpt           ? litgpt_chunk_rows(t.lora.rank > 0, p.counts.b)
                             : goes_by_sequence(head)           ? p.counts.k
                             : parts > 0                        ? p.counts.b * ceil_div(p.counts.k, parts)
                             : head == LossHead::liger_fused_ce ? liger::fused_head_rows(rows, a.hidden, a.vocab)
                                                                : chunk_rows(head, a.vocab);
  const std::int64_t tiles = std::max<std::int64_t>(1, ceil_div(p.counts.s, a.hidden));  // ArcticTraining: tiled_compute.py
  p.counts.m = t.tiled_mlp ? ceil_div(p.counts.s, tiles) : 1;
  p.chunks = chunk > 0 && runs_in_chunks(head) ? ceil_div(rows, chunk) : 1;
  p.counts.e = chunk > 0 ? std::min(rows, chunk) : 1;
  p.counts.n = p.chunks;
  p.counts.r = chunk > 0 ? rows - (p.chunks - 1) * p.counts.e : 1;
  if (head == LossHead::slime_fsdp) p.counts.e = std::max<std::int64_t>(1, rows - 1);  // the last one has no next token
  if (is_trl_sft(head)) {                                                              // of its metrics
    p.counts.e = std::max<std::int64_t>(1, p.counts.k - 1);
    p.counts.m = rows_together(head, p.counts.b, head == LossHead::trl_sft ? p.counts.k : p.counts.e);
  }
  return p;
}

PassOptions train_pass(const Trainer& t, EngineKind engine, const Architecture& a, bool critic, std::int64_t tokens,
                       KernelInternals internals) {
  PassOptions o;
  o.kernels = kernel_options(t, engine, a, internals);
  o.training = true;
  o.recompute = t.recompute;
  o.reentrant = t.reentrant;
  o.recompute_every = t.recompute == Recompute::full ? t.recompute_every : 1;
  o.head = critic ? LossHead::value : t.head;
  o.refers = t.reference != ReferencePass::none;
  if (t.head == LossHead::trl_gkd) count_cache(o, reference_architecture(t, a));
  o.keep_outputs = t.keep_outputs;
  // torch/nn/parallel/distributed.py `_post_forward`, 2.13; a static graph has it in its first forward pass alone
  o.clones_outputs = engine == EngineKind::ddp && t.find_unused_parameters && !t.static_graph;
  o.slice_hidden = t.logits_to_keep > 0;
  const PassCounts pass = pass_counts(t, tokens, o.head, a);
  o.kernels.window_mask = reaches_past_windows(o.kernels, a, pass.counts.s * t.layout.tensor);
  o.kernels.indexes_all = std::all_of(a.runs.begin(), a.runs.end(), [&](const LayerRun& r) {
    return pass.counts.s * t.layout.tensor <= r.layer.mixer.index_top;
  });
  if (internals.counted) count_internals(o.kernels, t, a, internals, pass.counts);
  if (t.compile && t.kernels == Kernels::archon)
    o.kernels.compiled_order = archon_order(a, t.recompute, o.kernels.parameters, pass.counts);
  o.kernels.casts_softmax = internals.casts_softmax && t.compute != DType::fp16 && !o.kernels.autocasts_to_half;
  o.chunks = static_cast<int>(std::min<std::int64_t>(4, pass.chunks));
  // LitGPT's output layer takes chunks, of which each keeps a copy of its own under autocast
  if (scans(a) || (is_litgpt(t.kernels) && t.autocast)) o.kernels.scan_tokens = pass.counts.s;
  choose_experts(o.kernels, t.experts, a, pass.counts.b * pass.counts.s);
  o.critic = critic || o.head == LossHead::value || o.head == LossHead::reward_pairs;
  return o;
}

PassOptions log_prob_pass(const Trainer& t, EngineKind engine, const Architecture& a, bool critic, std::int64_t tokens,
                          KernelInternals internals) {
  PassOptions o = train_pass(t, engine, a, critic, tokens, internals);
  o.training = false;
  o.recompute = Recompute::none;
  o.kernels.compiled_order = 0;
  o.reentrant = false;
  o.refers = false;
  o.clones_outputs = false;  // transformers' Trainer evaluates the model that DDP wraps, accelerate wraps no other
  return o;
}

const Architecture& reference_architecture(const Trainer& t, const Architecture& policy) {
  return t.other.architecture != nullptr ? *t.other.architecture : policy;
}

Trainer reference_trainer(const Trainer& t) {
  Trainer alone = t;
  if (!t.reference_format) return alone;
  const bool as_stored = t.compute == t.storage;  // nothing casts parameters
  alone.storage = *t.reference_format;
  if (as_stored) alone.compute = alone.reduce = alone.storage;
  return alone;
}

PassOptions reference_pass(const Trainer& t, EngineKind engine, const Architecture& a, KernelInternals internals) {
  const Trainer alone = reference_trainer(t);
  PassOptions o = log_prob_pass(alone, engine, a, false, t.tokens_per_micro_batch, internals);
  if (alone.compute != t.compute && !t.autocast) o.logged = t.compute;
  o.reference = true;
  o.adapters_off = t.reference == ReferencePass::adapters_off;
  if (!o.adapters_off || t.lora.frozen_copies == 0) o.kernels.adapters = {};  // the frozen ones take their place
  return o;
}

}  // namespace oomplan
