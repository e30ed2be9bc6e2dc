#include "training/megatron_plan.hpp"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <oomplan/units/errors.hpp>

#include "job/model_makers.hpp"
#include "layers/megatron_flex.hpp"
#include "layers/megatron_local.hpp"
#include "layers/megatron_moe.hpp"
#include "training/megatron_areal.hpp"
#include "training/megatron_host.hpp"
#include "training/megatron_shares.hpp"
#include "training/megatron_slime.hpp"

namespace oomplan {
namespace {

InputError cannot_split(const std::string& found, const std::string& why) {
  return InputError(Problem{{}, found, "layers that the pipeline's chunks can share out evenly", {}, why});
}

/// A share of `layers` for each of `parts`, or the reason why not.
std::int64_t share(std::int64_t layers, std::int64_t parts) {
  if (parts == 0) return 0;
  if (layers < 0 || layers % parts != 0)
    throw cannot_split(fmt::format("{} layers on {} chunks", layers, parts), "Megatron itself refuses layers that do not divide");
  return layers / parts;
}

/// Where a chunk's layers begin and how many it has.
struct Extent {
  std::int64_t first = 0, count = 0;
};
Extent extent_of(std::int64_t layers, const Trainer& t, std::int64_t stage, std::int64_t chunk) {
  const Megatron& m = t.megatron;
  const std::int64_t p = t.layout.pipeline, v = m.virtual_stages;
  if (p == 1) return {0, layers};
  if (m.first_stage_layers > 0 || m.last_stage_layers > 0) {
    const bool uneven_first = m.first_stage_layers > 0, uneven_last = m.last_stage_layers > 0;
    const std::int64_t rest = layers - m.first_stage_layers - m.last_stage_layers;
    const std::int64_t stages = p - (uneven_first ? 1 : 0) - (uneven_last ? 1 : 0);
    const std::int64_t inner = share(share(rest, stages), v);
    const std::int64_t first = uneven_first ? share(m.first_stage_layers, v) : inner;
    const std::int64_t last = uneven_last ? share(m.last_stage_layers, v) : inner;
    const std::int64_t in_all = first + inner * std::max<std::int64_t>(0, p - 2) + last;
    const std::int64_t offset = chunk * in_all + (stage == 0 ? 0 : first + (stage - 1) * inner);
    return {offset, stage == 0 ? first : stage == p - 1 ? last : inner};
  }
  const std::int64_t counted = layers + (m.embedding_in_split ? 1 : 0) + (m.loss_in_split ? 1 : 0);
  const std::int64_t each = share(share(counted, p), v);
  Extent e{chunk * (counted / v) + stage * each, each};
  const bool first = stage == 0 && chunk == 0, last = stage == p - 1 && chunk == v - 1;
  if (m.embedding_in_split) (first ? e.count : e.first) -= 1;
  if (m.loss_in_split && last) e.count -= 1;
  return e;
}

Extent extent_among(const std::vector<std::int64_t>& lengths, std::size_t number) {
  Extent e;
  for (std::size_t i = 0; i < number; ++i) e.first += lengths[i];
  e.count = lengths[number];
  return e;
}

bool has_experts(const Architecture& a, int run) { return a.runs[run_of(run)].layer.feed_forward.kind == FeedForwardKind::moe; }

std::int64_t expert_layers(const Architecture& a, const ChunkOptions& o) {
  const std::vector<int> layers = all_layers(a, o);
  return std::count_if(layers.begin(), layers.end(), [&](int run) { return has_experts(a, run); });
}

/// FusedAdam.step makes narrow states fp32, those of all of one optimizer at once; experts have an optimizer of their own
/// (pytorch/optimizers/fused_adam.py: get_unscaled_state, 2.9 and 2.11). From 2.14 on two states in bf16 stay as they are
/// (fuse_unscale).
Bytes widened_states(const Megatron& m, std::int64_t elements) {
  if (m.te_release == TeRelease::v2_14 && m.exp_avg == DType::bf16 && m.exp_avg_sq == DType::bf16) return 0;
  Bytes out = 0;
  for (const DType state : {m.exp_avg, m.exp_avg_sq}) out += state == DType::fp32 ? 0 : bytes_of(elements, DType::fp32);
  return out;
}

/// How many ranks share masters and states.
struct Sharing {
  std::int64_t dense = 1, experts = 1;
};

/// HybridDeviceOptimizer (see megatron_host.hpp): one for the dense parameters, one for the experts. `share`: of the rank, in
/// fp32. With the precision-aware optimizer what stays on the GPU has its masters there in fp32 with states and, where gradients
/// are narrower, fp32 copies of them that stay. Without it all masters stay on the GPU.
void put_on_host(MegatronStage& s, const Trainer& t, const MegatronParameters& n, const Sharing& by, Bytes share) {
  const Megatron& m = t.megatron;
  const std::vector<std::int64_t> buckets = bucket_sizes(n.dense_tensors.size(), t, s.stage);
  Bytes kept = 0;
  for (const auto& [tensors, ranks] : {std::pair{&n.dense_tensors, by.dense}, {&n.expert_tensors, by.experts}}) {
    const HostShare part = fullest_share(host_shares(*tensors, buckets, ranks, m.host_fraction));
    kept += bytes_of(part.kept, DType::fp32);
    s.host.masters += bytes_of(part.offloaded, DType::fp32);
    s.host.gradients += part.pinned;
    s.host.copies += bytes_of(part.whole_offloaded, DType::fp32);
    s.host.device_copies += bytes_of(part.whole_kept, DType::fp32);
    // aten/src/ATen/native/cuda/Copy.cu: what changes its format on the way to or from the host is first copied on the GPU; and
    // of 16-bit gradients that stay a new fp32 copy is there beside the last step's
    const std::int64_t once = t.reduce == DType::fp32 ? part.largest : std::max(part.largest, part.largest_kept);
    if (m.precision_aware) s.host.passing = std::max(s.host.passing, bytes_of(once, DType::fp32));
  }
  const bool wide = t.reduce == DType::fp32;
  s.host.states = 2 * s.host.masters;
  s.states = 2 * kept;
  s.masters = m.precision_aware ? kept : share;
  s.wide_gradients = wide ? 0 : s.masters;
  s.keeps_wide_gradients = m.precision_aware;
}

/// One block among those of its size.
void add_block(std::vector<MegatronPiece>& blocks, std::int64_t elements) {
  const auto same = std::find_if(blocks.begin(), blocks.end(), [&](const auto& b) { return b.elements == elements; });
  if (same == blocks.end())
    blocks.push_back({elements, 1});
  else
    ++same->count;
}

/// _ParamAndGradBuffer: gradients have a buffer for each chunk's dense parameters and experts; parameters only where the
/// optimizer is distributed, and what is frozen not at all. Parameters in 8 bits have buffers of their own.
void put_in_blocks(MegatronStage& s, const MegatronParameters& n, bool distributed) {
  for (const auto* chunks : {&n.dense_tensors, &n.expert_tensors})
    for (const auto& tensors : *chunks)
      for (const bool stored : {true, false}) {
        std::int64_t all = 0;
        std::vector<MegatronPiece>& blocks = stored ? s.blocks_in_8_bits : s.weight_blocks;
        for (const MegatronTensor& t : tensors) {
          if (t.stored_in_8_bits != stored) continue;
          all += t.elements;
          if (!distributed) add_block(blocks, t.elements);
        }
        if (all == 0) continue;
        add_block(s.gradient_blocks, all);
        if (distributed) add_block(blocks, all);
      }
  for (const MegatronTensor& t : n.frozen) add_block(s.weight_blocks, t.elements);
}

/// Matrices in 8 bits beside those buffers: transposed copies, made by post_all_gather_processing
/// (pytorch/tensor/utils.py, Transformer Engine 2.17.1) of parameters in 8 bits; and of parameters in 16 bits all of it, which
/// the modules keep for the next micro-batches (pytorch/module/base.py: quantize_weight with a workspace). Scales in blocks are
/// others along the other side, which is there on every GPU.
void put_copies_in_blocks(MegatronStage& s, const MegatronParameters& n, const Megatron& m) {
  s.copies_in_8_bits = !m.fp8_parameters;
  const bool blocks = m.fp8 == Fp8Recipe::blockwise || m.fp8 == Fp8Recipe::mxfp8;
  const int copies = (m.fp8_parameters ? 0 : 1) + (blocks || m.fp8_transposes ? 1 : 0);
  for (const auto* chunks : {&n.dense_tensors, &n.expert_tensors})
    for (const auto& tensors : *chunks)
      for (const MegatronTensor& t : tensors) {
        if (!t.multiplied_in_8_bits) continue;
        for (int copy = 0; copy < copies; ++copy) add_block(s.blocks_in_8_bits, t.elements);
        for (const Bytes scales : {t.row_scales, t.column_scales})
          if (scales > 0) add_block(s.blocks_in_8_bits, scales);
      }
  s.weights_in_8_bits = bytes_of_pieces(s.blocks_in_8_bits, {DType::fp8});
}

/// Numbers that are parameters in 8 bits.
std::int64_t stored_in_8_bits(const MegatronParameters& n) {
  std::int64_t out = 0;
  for (const auto* chunks : {&n.dense_tensors, &n.expert_tensors})
    for (const auto& tensors : *chunks)
      for (const MegatronTensor& t : tensors) out += t.stored_in_8_bits ? t.elements : 0;
  return out;
}

/// Masters, states and fp32 copies of 16-bit gradients, a tensor of each for every part of the share. The precision-aware
/// optimizer is Transformer Engine's FusedAdam with store_param_remainders: of a master the 16 bits that the parameter lacks,
/// with the states; unless Megatron keeps the masters itself (optimizer/optimizer_config.py:
/// use_precision_aware_optimizer_no_fp8_or_ds_fp8).
void put_on_gpu(MegatronStage& s, const Trainer& t) {
  const Megatron& m = t.megatron;
  const bool remainders = m.precision_aware && !m.fp32_masters;
  if (remainders)
    s.state_formats = {m.exp_avg, m.exp_avg_sq, DType::bf16};
  else if (m.precision_aware)
    s.state_formats = {m.exp_avg, m.exp_avg_sq};
  else if (!m.stateless_adam)
    s.state_formats = {DType::fp32, DType::fp32};
  if (!remainders) s.master_formats = {DType::fp32};
  if (!remainders && t.reduce != DType::fp32) s.wide_formats = {DType::fp32};
  s.masters = bytes_of_pieces(s.pieces, s.master_formats);
  s.states = bytes_of_pieces(s.pieces, s.state_formats);
  s.wide_gradients = bytes_of_pieces(s.pieces, s.wide_formats);
}

/// AReaL wraps the model in DistributedDataParallel before it adds adapters: the gradient buffer is that of the whole frozen
/// model, and adapters have gradients of their own in 16 bits, which the step copies to fp32 (areal/engine/megatron_engine.py:
/// initialize, _apply_megatron_bridge_lora; megatron/core/optimizer/optimizer.py: _copy_model_grads_to_main_grads).
void put_adapters_outside(MegatronStage& s, const MegatronParameters& n, std::int64_t frozen, bool wrapped) {
  s.gradient_blocks.clear();
  if (wrapped) s.gradient_blocks.push_back({frozen, 1});
  const std::int64_t in_format = s.gradient_format == DType::fp32 ? 2 : 1;  // 16 bits as numbers of the buffer's format
  for (const auto* chunks : {&n.dense_tensors, &n.expert_tensors})
    for (const auto& tensors : *chunks)
      for (const MegatronTensor& t : tensors) add_block(s.gradient_blocks, ceil_div(t.elements, in_format));
  s.gradients = bytes_of_pieces(s.gradient_blocks, {s.gradient_format});
  s.wide_formats = {DType::fp32};
  s.wide_gradients = bytes_of_pieces(s.pieces, s.wide_formats);
}

/// The model's table of angles, one for each chunk, beside a tower none that stays; with latent attention every layer has its
/// own, with fused rotary positions as cosines and sines.
Bytes rotary_tables(const Architecture& a, const ChunkOptions& o, std::int64_t tokens) {
  std::int64_t shared = 0, own = 0;
  if (o.gemma) {  // a table for layers with a window and one for the others (Gemma4DenseRotaryEmbedding)
    std::set<std::int64_t> widths;
    for (const auto& run : a.runs) widths.insert(run.layer.mixer.head_dim);
    return bytes_of(tokens * std::accumulate(widths.begin(), widths.end(), std::int64_t{0}), DType::fp32);
  }
  for (const auto& run : a.runs)
    if (a.tower.kind.empty() && run.layer.mixer.kind == MixerKind::attention)
      shared = std::max(shared, run.layer.mixer.rotary_dim);
  for (const int run : all_layers(a, o)) {
    const Mixer& m = a.runs[run_of(run)].layer.mixer;
    if (m.kind == MixerKind::mla) own += (o.settings.rotary_fusion ? 2 : 1) * m.rope_head_dim;
  }
  return bytes_of(tokens * (shared + own), DType::fp32);
}

/// What MoEAllGatherTokenDispatcher leaves: the tokens of all ranks in the shared buffer, and of every layer's last tokens the
/// map of its own experts, the way back and the rows' probabilities.
Bytes gathered_experts(MegatronStage& s, const FeedForward& f, const Trainer& t, std::int64_t hidden) {
  const Megatron& m = t.megatron;
  const Layout& l = t.layout;
  const std::int64_t own = s.counts.b * s.counts.s, all = own * l.expert * l.expert_tensor, local = f.experts / l.expert;
  const std::int64_t rows = (s.counts.e > 1 ? s.counts.e : own * f.experts_per_token) * l.expert_tensor;
  if (all > own) s.gathered = std::max(s.gathered, bytes_of(all * hidden, DType::bf16));
  s.routing += bytes_of(all * local, DType::boolean);
  const Bytes map = m.permute_fusion ? bytes_of(all * (2 * local + 1), DType::int32) : bytes_of(rows, DType::int64);
  return map + bytes_of(rows, m.router);
}

/// What the dispatcher of a layer with experts keeps of the last tokens beyond `s.routing`, where it is added up as well.
Bytes kept_maps(MegatronStage& s, const Architecture& a, const FeedForward& f, const Trainer& t) {
  const Megatron& m = t.megatron;
  if (m.dispatcher == TokenDispatcher::allgather) return gathered_experts(s, f, t, a.hidden);
  const std::int64_t routed = s.counts.b * s.counts.s;
  if (m.dispatcher == TokenDispatcher::flex) {
    const std::int64_t of_experts = (s.counts.e > 1 ? s.counts.e : routed * f.experts_per_token) * t.layout.expert_tensor;
    const KeptByFlex kept = kept_by_flex(f, m, t.layout, s.counts, of_experts, s.trains);
    s.routing += kept.always;
    return kept.maps;
  }
  Bytes maps = 0;
  // MoEAlltoAllTokenDispatcher keeps the last probabilities, the routing map and the map of the permutation
  s.routing += bytes_of(routed * f.experts, m.router);
  (m.expert_capacity > 0 ? maps : s.routing) += bytes_of(routed * f.experts, DType::boolean);  // dropped: kept, too
  const bool padded = m.fp8 != Fp8Recipe::none && m.router_padding;
  const std::int64_t rows = capacity_is_reached(m) ? s.counts.e : padded ? s.counts.m : routed * f.experts_per_token;
  return maps + (m.permute_fusion ? bytes_of(routed * (2 * f.experts + 1), DType::int32) : bytes_of(rows, DType::int64));
}

/// Beside a tower a rank's tokens are a view of all that were embedded (megatron/bridge/models/qwen_vl/modelling_qwen3_vl/
/// text_model.py: _sp_scatter_embedding).
std::int64_t embedded_parts(const Architecture& a, const ChunkOptions& chunk) {
  return a.tower.kind.empty() || !chunk.te.sequence_parallel ? 1 : chunk.te.tensor;
}

/// Under a checkpoint nothing else keeps the maps; and the probabilities of the last recomputation keep its graph, whose leaf is
/// the checkpoint's input, with a gradient. So do the states behind attention of a dense layer of Gemma 4: TransformerLayer has
/// them in mlp_norm_manager until its _forward_post_mlp, which Gemma4DenseTransformerLayer passes over (Megatron-LM 0e6ac576f).
LastRouting last_routing(MegatronStage& s, const Architecture& a, const ChunkOptions& chunk, const Trainer& t) {
  const bool alone = recomputes(chunk, "moe");
  LastRouting out;
  out.whole_layers = !alone;
  const auto maps_of = [&](int run) {
    return has_experts(a, run) ? kept_maps(s, a, a.runs[run_of(run)].layer.feed_forward, t) : 0;
  };
  const LayerGroup* last = nullptr;
  const std::vector<LayerGroup> groups = layer_groups(chunk);
  for (const LayerGroup& group : groups) {
    Bytes maps = 0;
    for (const int run : group.layers) maps += maps_of(run);
    const bool experts = std::ranges::any_of(group.layers, [&](int run) { return has_experts(a, run); });
    const bool frozen = chunk.settings.mtp_alone;  // no graph leads anywhere, and nothing else keeps the maps
    const bool again = experts && (group.checkpoint || alone) && !frozen;
    const bool held = chunk.gemma && group.checkpoint && !experts;
    const Bytes replaced = (again || frozen) && group.layers.size() == 1 ? maps : held ? s.hidden : 0;
    if (again || frozen) s.routing += std::exchange(maps, 0) - replaced;
    if (last == nullptr || *last != group) {
      out.units.push_back(0);
      out.maps.push_back(maps);
      out.replaced.push_back(replaced);
      out.leaves.push_back(again || held ? 1 : 0);
    }
    ++out.units.back();
    last = &group;
  }
  const std::vector<int> all = all_layers(a, chunk);
  for (std::size_t i = chunk.layers.size(); i < all.size(); ++i) {
    const Bytes maps = maps_of(all[i]);
    const bool again = has_experts(a, all[i]) && (t.recompute == Recompute::full || alone);
    // trained apart, the probabilities' graph has the decoder's states for its leaf, which has a gradient; computed again and
    // not apart, the embedding too
    const bool apart = has_experts(a, all[i]) && predicts_apart(chunk) && s.trains;
    const bool reaches = chunk.actor && !predicts_apart(chunk);
    const Bytes leaves = reaches ? 3 + embedded_parts(a, chunk) : 2;
    s.routing += again ? maps : 0;
    out.behind_again = out.behind_again || again;
    out.behind += again ? leaves * s.hidden : maps + (apart ? 2 * s.hidden : 0);
    out.behind_passes += again ? 0 : maps;
  }
  return out;
}

/// What stays is buckets' own.
void put_under_fsdp(MegatronStage& s, const Architecture& a, const Trainer& t, const ChunkOptions& chunk) {
  auto plan = std::make_shared<MegatronFsdpPlan>(make_megatron_fsdp_plan(a, t, chunk));
  s.weights = s.gradients = s.masters = s.states = 0;
  for (const FsdpBucket& b : plan->buckets) {
    s.weights += bytes_of(plan->splits_weights ? b.shard : b.elements, DType::bf16);
    s.gradients += bytes_of(plan->splits_gradients ? b.shard : b.elements, t.reduce);
    s.masters += bytes_of(plan->splits_masters ? b.shard : b.elements, DType::fp32);
    for (const std::int64_t part : b.parts) s.states += 2 * bytes_of(part, DType::fp32);
  }
  s.fsdp = std::move(plan);
}

/// The buffer that all attentions of Megatron's own write their scores over and, under sequence parallelism of its own modules,
/// all products gather their input in; it has the size of the largest.
Bytes shared_buffer(const Architecture& a, const ChunkOptions& o, std::int64_t sequences, std::int64_t tokens) {
  std::int64_t largest = is_local(o) && o.te.sequence_parallel ? sequences * tokens * a.hidden : 0;
  for (const int run : o.layers) {
    const std::int64_t heads = a.runs[run_of(run)].layer.mixer.heads / o.te.tensor;
    largest = std::max(largest, sequences * heads * tokens * tokens);
  }
  return bytes_of(largest, DType::bf16);
}

/// drain_embedding_wgrad_compute (megatron/core/utils.py): gradients of the logits and the output layer's inputs wait in lists;
/// gathered inputs go through two buffers of their own, which stay.
void defer_gradients(MegatronStage& s, const Architecture& a, const ChunkOptions& o, Bytes gathered) {
  const std::int64_t limit = o.settings.deferral_limit;
  s.deferrals = limit > 0 ? std::min(limit, s.micro_batches) : s.micro_batches;
  const std::int64_t sequence = s.counts.b * s.counts.s, all = sequence * (o.te.sequence_parallel ? o.te.tensor : 1);
  s.deferred = bytes_of(all * (o.padded_vocab / o.te.tensor) + sequence * a.hidden, DType::bf16);
  if (o.te.sequence_parallel) s.gathered += std::min<std::int64_t>(s.deferrals, 2) * gathered;
}

/// A model without an optimizer: parameters, and the flat gradient buffer where DDP wraps it all the same.
void hold_no_states(MegatronStage& s, bool wrapped) {
  s.masters = s.states = s.wide_gradients = s.widened_states = s.denominators = 0;
  s.master_formats.clear();
  s.state_formats.clear();
  s.wide_formats.clear();
  s.pieces.clear();
  s.host = {};
  if (wrapped) return;
  s.gradients = 0;
  s.gradient_blocks.clear();
}

/// Of Megatron's own modules only the router's product is Transformer Engine's (transformer/moe/moe_utils.py:
/// RouterGatingLinearFunction with te_general_gemm).
bool multiplies_with_te(const Architecture& a, const std::vector<ChunkOptions>& chunks) {
  const bool own = is_local(chunks.front()) || chunks.front().gemma;  // Gemma 4 without experts has Megatron's own products
  return !own || std::ranges::any_of(chunks, [&](const ChunkOptions& chunk) { return expert_layers(a, chunk) > 0; });
}

void count_areal_chunks(MegatronStage& s, const ArealCut& cut) {
  s.counts.k = cut.tokens;
  if (cut.chunks == 0) return;
  s.head_chunks = cut.chunks;
  s.counts.n = cut.chunks;
  s.counts.m = cut.rows;
}
void count_slime_rows(MegatronStage& s, const SlimeCut& cut, std::int64_t context) {
  if (by_samples(cut.kind)) s.counts.k = ceil_div(cut.rows, context > 1 ? 2 : 1);
  if (cut.chunks == 0) return;
  if (cut.kind == ActorLossKind::slime) s.head_chunks = s.counts.n = cut.chunks;
  s.counts.m = ceil_div(cut.rows, cut.chunks);
}
/// Relax puts the whole rollout's ids and log-probs of most likely tokens on the GPU (restore_opd_topk_rollout_fields,
/// relax/utils/opd/opd_main_worker.py, 02bf712a); a classifier's own output layer is there until the checkpoint is loaded
/// (release_sequence_classification_lm_heads, relax/utils/training/ppo_utils.py, the same).
void hold_for_loss(MegatronStage& s, const Architecture& a, const Trainer& t, const ChunkOptions& last) {
  const std::int64_t numbers = t.megatron.teacher_rows * t.megatron.teacher_topk;
  s.batch = bytes_of(numbers, DType::int64) + (t.megatron.teacher_in_advantages ? 2 : 1) * bytes_of(numbers, DType::fp32);
  const bool shares = a.tied && last.first;
  if (t.megatron.labels > 0 && last.last && made_by_bridge(t) && !shares)
    s.replaced_head = bytes_of(last.padded_vocab / last.te.tensor * a.hidden, DType::bf16);
}

/// Nothing is kept for backward: checkpoints run their layers as they are. verl computes the entropy of the actor's old
/// log-probs, whatever its loss is made of, and not of the reference's (verl/workers/megatron_workers.py: compute_log_prob, 0.7).
ChunkOptions without_gradients(ChunkOptions o, bool trains) {
  o.forward_only = true;
  o.recompute = Recompute::none;
  if (o.actor) o.actor->entropy = trains && !copies_logits(o.actor->kind);  // slime: --use-rollout-entropy
  if (o.actor) o.actor->topk = o.actor->head_chunks = 0;
  if (o.patched) o.idle_mtp += std::exchange(o.mtp, 0);  // mtp_kwargs are those of training (megatron_utils/model.py)
  return o;
}

/// The longest ones that fit, and what is left: nothing takes more where each is attended to by itself.
std::vector<std::int64_t> packed_lengths(std::int64_t tokens, std::int64_t longest) {
  constexpr std::int64_t kMost = 16;  // more are taken as so many alike
  if (tokens / longest >= kMost) return std::vector<std::int64_t>(kMost, ceil_div(tokens, kMost));
  std::vector<std::int64_t> out(static_cast<std::size_t>(tokens / longest), longest);
  if (tokens % longest > 0) out.push_back(tokens % longest);
  return out;
}

/// Sequences that are packed into a row, and what linear attention makes of them.
void see_sequences(ChunkOptions& o, const Architecture& a, const Trainer& t, const MegatronUse& use) {
  const std::int64_t tokens = megatron_tokens(t), longest = use.sequence > 0 ? use.sequence : t.sequence_tokens;
  const std::int64_t length = longest > 0 ? std::min(longest, tokens) : tokens;
  const std::int64_t sequences = t.sequences_per_micro_batch > 0 ? 1 : std::max<std::int64_t>(1, tokens / length);
  if (t.sequences_per_micro_batch == 0) o.packed = std::min<std::int64_t>(3, sequences);
  const bool linear = std::ranges::any_of(a.runs, [](const LayerRun& r) { return r.layer.mixer.kind == MixerKind::gated_delta; });
  o.of_slime = has_slime_layers(t);
  o.patched = t.loop.says_loss;
  o.gemma = made_by_bridge(t) && a.family == "gemma4";
  if (o.gemma) o.lengths = packed_lengths(tokens, length);
  if (!linear || (!sees_images_under_megatron(t) && !o.of_slime)) return;
  constexpr std::int64_t kChunk = 64;
  o.delta_chunks = sequences * ceil_div(tokens / sequences, kChunk);
  if (o.of_slime) return;
  // apply_rotary_pos_emb_in_fp32 (mbridge/models/qwen3_5/qwen3_5_vl_bridge.py, 10cb17f; qwen35_vl_provider.py, 0.5.2)
  o.rotary_in_fp32 = t.megatron.maker == ModelMaker::mbridge;
}

/// mbridge's Qwen3-VL deals images out among the ranks of a context, its Qwen3.5 among those of the tensors, too; Megatron-Bridge
/// does with vision_dp_when_cp alone (mbridge/models/{qwen3_vl,qwen3_5}/model.py, 641a5a0, 10cb17f;
/// models/qwen_vl/modelling_qwen3_vl/model.py, 0.5.2).
void see_images(ChunkOptions& o, const Architecture& a, const Trainer& t) {
  o.vision = vision_pass(t, EngineKind::megatron, a);
  o.own_attention = !a.tower.kind.empty() && !embeds_before_tower(a, o) && !holds_tower_alone(a);
  if (o.vision.images == 0) return;
  if (t.megatron.maker == ModelMaker::mbridge && a.tower.kind == "qwen3_vl") o.image_ranks = t.layout.context;
  if (tower_of_transformers(a, o) && !embeds_before_tower(a, o)) o.image_ranks *= t.layout.tensor;
  o.all_images = o.vision.images;
  o.image_rows = std::max<std::int64_t>(1, t.sequences_per_micro_batch);
  // each image stands in front of its sequence; a rank has a stretch of all tokens
  const std::int64_t ranks = t.layout.context * (o.te.sequence_parallel ? o.te.tensor : 1), tokens = megatron_tokens(t);
  const std::int64_t stretch = ceil_div(tokens, ranks),
                     length = std::max<std::int64_t>(1, tokens * o.image_rows / o.vision.images);
  const std::int64_t of_image = image_tokens(a.tower, o.vision);
  o.rank_features = stretch / length * of_image + std::min(of_image, stretch % length);
  o.vision.images = ceil_div(o.vision.images, o.image_ranks);
  if (o.first) o.featured = a.tower.deepstack;
}

bool takes_softmax_kernel(const Architecture& a, const Trainer& t, std::int64_t tokens) {
  const std::int64_t sequences = std::max<std::int64_t>(1, t.sequences_per_micro_batch);
  return std::ranges::all_of(
      a.runs, [&](const auto& run) { return local_softmax_kernel(sequences, run.layer.mixer.heads / t.layout.tensor, tokens); });
}

/// Log-probs in micro-batches of a size of their own: buffers that all passes share have the larger size.
void take_passes(MegatronStage& s, const Architecture& a, const Trainer& t, MegatronUse use) {
  Trainer trainer = t;
  trainer.tokens_per_micro_batch = std::exchange(trainer.logprob_tokens_per_micro_batch, 0);
  if (trainer.sequences_per_micro_batch > 0)
    trainer.sequences_per_micro_batch = std::max<std::int64_t>(1, trainer.tokens_per_micro_batch / trainer.sequence_tokens);
  use.passes_alone = true;
  auto alone = std::make_shared<MegatronStage>(make_megatron_stage(a, trainer, s.stage, s.micro_batches, use));
  s.forward_chunks = alone->forward_chunks;
  s.gathered = std::max(s.gathered, alone->gathered);
  s.tables = std::max(s.tables, alone->tables);
  s.routing = std::max(s.routing, alone->routing);
  for (std::size_t c = 0; c < s.permutations.size(); ++c)
    for (std::size_t i = 0; i < s.permutations[c].replaced.size(); ++i)
      s.permutations[c].replaced[i] = std::max(s.permutations[c].replaced[i], alone->permutations[c].replaced[i]);
  s.alone = std::move(alone);
}

}  // namespace

Bytes bytes_of_pieces(const std::vector<MegatronPiece>& pieces, const PieceFormats& formats) {
  Bytes out = 0;
  for (const DType format : formats)
    for (const MegatronPiece& p : pieces) out += p.count * bytes_of(p.elements, format);
  return out;
}

std::int64_t megatron_vocab(const Architecture& a, const Trainer& t) {
  if (!t.loop.pads_vocab || made_by_bridge(t)) return a.vocab;  // should_pad_vocab is off (models/gpt_provider.py, 0.5.2)
  const std::int64_t unit = 128 * t.layout.tensor;
  return (a.vocab + unit - 1) / unit * unit;
}

std::vector<std::vector<int>> megatron_layers(const Architecture& a, const Trainer& t, std::int64_t stage) {
  std::vector<int> runs;
  for (std::size_t r = 0; r < a.runs.size(); ++r)
    runs.insert(runs.end(), static_cast<std::size_t>(a.runs[r].count), static_cast<int>(r));
  std::vector<std::vector<int>> out;
  const std::int64_t chunks = t.layout.pipeline > 1 ? t.megatron.virtual_stages : 1;
  const auto areal = t.loop.balances_stages ? areal_stage_layers(a, t) : std::vector<std::int64_t>{};
  for (std::int64_t c = 0; c < chunks; ++c) {
    const Extent e = areal.empty() ? extent_of(static_cast<std::int64_t>(runs.size()), t, stage, c)
                                   : extent_among(areal, static_cast<std::size_t>(c * t.layout.pipeline + stage));
    // the embedding or the loss may have taken the place of a chunk's only layer
    if (e.count < 0) throw cannot_split(fmt::format("a chunk of {} layers", e.count), "Megatron itself refuses it");
    out.emplace_back(runs.begin() + e.first, runs.begin() + e.first + e.count);
    for (std::int64_t i = 0; i < e.count; ++i)  // is_first_last_bf16_layer: layers are counted over the whole model
      if (e.first + i < t.megatron.fp8_wide_first || e.first + i >= std::ssize(runs) - t.megatron.fp8_wide_last)
        out.back()[static_cast<std::size_t>(i)] = ~out.back()[static_cast<std::size_t>(i)];
  }
  return out;
}

std::vector<ChunkOptions> megatron_chunks(const Architecture& a, const Trainer& t, std::int64_t stage, const MegatronUse& use) {
  std::vector<ChunkOptions> out;
  const auto layers = megatron_layers(a, t, stage);
  for (std::size_t c = 0; c < layers.size(); ++c) {
    ChunkOptions o;
    o.layers = layers[c];
    o.first = stage == 0 && c == 0;
    o.last = stage == t.layout.pipeline - 1 && c == layers.size() - 1;
    o.te.tensor = t.layout.tensor;
    o.te.sequence_parallel = t.megatron.sequence_parallel && t.layout.tensor > 1;
    o.te.fused_gradients = t.megatron.gradient_accumulation_fusion;
    o.te.several_sequences = t.sequences_per_micro_batch > 1;
    o.te.attention = t.megatron.attention;
    o.te.attention_dropout = a.attention_dropout > 0;
    o.te.context = t.layout.context;
    o.te.exchange = t.megatron.context_exchange;
    o.te.fp8 = t.megatron.fp8;
    o.te.fp8_transposes = t.megatron.fp8_transposes;
    o.te.fp8_on_blackwell = t.megatron.fp8_on_blackwell;
    o.recompute = t.recompute;
    o.settings = t.megatron;
    o.settings.mtp_alone = t.megatron.mtp_alone && t.megatron.mtp_layers > 0 && t.megatron.mtp_runs;
    o.padded_vocab = megatron_vocab(a, t);
    o.expert = t.layout.expert;
    o.expert_tensor = t.layout.expert_tensor;
    const std::int64_t tokens = megatron_tokens(t);
    const std::int64_t embedded = std::max<std::int64_t>(1, t.sequences_per_micro_batch) * ceil_div(tokens, t.layout.context);
    o.kernel_internals = t.kernel_internals;
    if (t.kernel_internals) o.embedding_sort = embedding_sort(embedded, o.padded_vocab / o.te.tensor);
    o.softmax_kernel = t.megatron.masked_softmax_fusion && takes_softmax_kernel(a, t, tokens);
    (t.megatron.mtp_runs ? o.mtp : o.idle_mtp) = o.last ? t.megatron.mtp_layers : 0;
    o.adapters = megatron_adapters(t);
    o.adapters.frozen = !made_by_bridge(t) && trains_mergers_alone(t.megatron.maker, a);  // Relax's flags say what is
    o.tower = o.settings.mtp_alone ? TowerTraining::none : t.vision.train;
    see_sequences(o, a, t, use);
    see_images(o, a, t);
    if (t.loop.loss_by_sequence) {
      const ArealCut cut = areal_cut(t, use);
      o.areal = {.on = true,
                 .value = use.critic,
                 .parts = t.layout.context > 1 ? 0 : std::min<std::int64_t>(3, cut.sequences),
                 .chunks = static_cast<int>(std::min<std::int64_t>(4, cut.chunks)),
                 .entropy = !use.supervised,
                 .fp32 = t.megatron.fp32_logits,
                 .in_place = t.megatron.fp32_logits && !t.megatron.entropy_loss,
                 .head_chunk = t.megatron.head_chunk,
                 .gathered = t.layout.context > 1 && areal_gathers(t) ? std::min<std::int64_t>(3, cut.least) : 0};
    }
    if (const auto cut = slime_cut(t, use)) o.actor = slime_loss(t, *cut, use.supervised);
    if ((t.loop.actor_loss || t.loop.says_loss) && use.critic) o.areal = {.on = true, .value = true};  // the same value head
    if (t.megatron.labels > 0) o.areal = {.on = true, .value = true, .labels = t.megatron.labels};
    if (t.loop.actor_loss && !use.critic)
      o.actor = ActorLoss{.kind = ActorLossKind::verl,
                          .entropy = t.megatron.entropy_loss,
                          .fused = t.megatron.loss == MegatronLoss::verl_fused,
                          .topk = t.megatron.teacher_topk,
                          .topk_alone = t.megatron.teacher_alone,
                          .undivided = t.megatron.loss == MegatronLoss::verl_undivided};
    out.push_back(std::move(o));
  }
  return out;
}

MegatronStage make_megatron_stage(const Architecture& a, const Trainer& t, std::int64_t stage, std::int64_t micro_batches,
                                  const MegatronUse& use) {
  const auto chunks = megatron_chunks(a, t, stage, use);
  MegatronStage s;
  s.trains = use.trains;
  // what an optimizer on the host has on the GPU is its own to move (relax/backends/megatron/weight_update/train_offload.py)
  s.moves_whole = t.loop.pauses_whole && t.megatron.selective_offload && t.offload_parameters;
  s.pauses = t.offload_parameters && !t.loop.moves_parameters && !s.moves_whole;
  s.parks_parameters = t.offload_parameters && (t.loop.moves_parameters || s.moves_whole);
  s.parks_optimizer = t.offload_optimizer && (t.loop.moves_optimizer || (s.moves_whole && !t.megatron.host_optimizer));
  s.stage = stage;
  s.stages = t.layout.pipeline;
  s.group = t.megatron.virtual_group > 0 ? t.megatron.virtual_group : s.stages;
  s.micro_batches = std::max<std::int64_t>(1, micro_batches);
  s.deallocates = t.megatron.deallocate_outputs;
  const TeOptions& te = chunks.front().te;
  s.counts.b = std::max<std::int64_t>(1, t.sequences_per_micro_batch);
  const std::int64_t whole = ceil_div(megatron_tokens(t), t.layout.context);
  s.counts.s = ceil_div(whole, te.sequence_parallel ? te.tensor : 1);
  s.hidden = bytes_of(s.counts.b * s.counts.s * a.hidden, DType::bf16);
  for (const auto& run : a.runs)  // all experts of a model are alike
    if (run.layer.feed_forward.kind == FeedForwardKind::moe) {
      s.counts.e = arriving_rows(run.layer.feed_forward, t.megatron, t.layout.expert, s.counts.b * s.counts.s);
      s.counts.m = padded_rows(run.layer.feed_forward, t.megatron, t.layout, s.counts.b * s.counts.s);
      const FlexTokens flex = flex_tokens(run.layer.feed_forward, t.megatron, t.layout, s.counts.b * s.counts.s);
      s.counts.d = flex.received;
      s.counts.r = flex.remote;
    }
  if (t.loop.loss_by_sequence) count_areal_chunks(s, areal_cut(t, use));
  if (const auto cut = slime_cut(t, use)) count_slime_rows(s, *cut, t.layout.context);
  for (const auto& chunk : chunks) {
    if (use.trains && !use.passes_alone) s.chunks.push_back(make_chunk_tape(a, chunk));
    if (use.log_probs) s.forward_chunks.push_back(make_chunk_tape(a, without_gradients(chunk, use.trains)));
    s.receives.push_back(!chunk.first);
    s.hands_on.push_back(!chunk.last);
    s.tables += rotary_tables(a, chunk, whole);
    if (scores_itself(chunk)) s.gathered = std::max(s.gathered, shared_buffer(a, chunk, s.counts.b, whole));
    // the output layer's, and that of adapters that gather their input again; a frozen output layer gathers without the buffer
    const bool adapters = chunk.adapters.regathers && (chunk.adapters.qkv || chunk.adapters.fc1);
    const bool fused = chunk.actor && chunk.actor->fused, classifies = t.megatron.labels > 0;
    if (te.sequence_parallel && (chunk.adapters ? adapters : chunk.last && !fused && !classifies))
      s.gathered = std::max(s.gathered, bytes_of(s.counts.b * whole * a.hidden, DType::bf16));
  }
  if (t.megatron.defer_wgrad && chunks.back().last)
    defer_gradients(s, a, chunks.back(), bytes_of(s.counts.b * whole * a.hidden, DType::bf16));
  const MegatronParameters n = megatron_parameters(a, chunks);
  const Layout& l = t.layout;
  const auto split = [&](std::int64_t ranks) {
    return t.megatron.distributed_optimizer ? std::max<std::int64_t>(1, ranks / t.megatron.optimizer_instances) : 1;
  };
  const std::int64_t dense_ranks = split(l.data * l.context);
  const std::int64_t expert_ranks = split(std::max<std::int64_t>(1, l.world() / (l.expert_tensor * l.expert * l.pipeline)));
  const auto held = [&](DType format) {
    return bytes_of(ceil_div(n.dense, dense_ranks), format) + bytes_of(ceil_div(n.experts, expert_ranks), format);
  };
  std::int64_t frozen = 0;
  for (const MegatronTensor& tensor : n.frozen) frozen += tensor.elements;
  s.weights = bytes_of(n.dense + n.experts + frozen - stored_in_8_bits(n), DType::bf16);
  s.gradients = bytes_of(n.dense + n.experts, t.reduce);
  s.gradient_format = t.reduce;
  put_in_blocks(s, n, t.megatron.distributed_optimizer);
  if (te.fp8 != Fp8Recipe::none) put_copies_in_blocks(s, n, t.megatron);
  const Megatron& m = t.megatron;
  if (m.host_optimizer) {
    put_on_host(s, t, n, {dense_ranks, expert_ranks}, held(DType::fp32));
  } else {
    s.pieces = fullest_pieces(n, bucket_sizes(chunks.size(), t, stage), dense_ranks, expert_ranks);
    put_on_gpu(s, t);
    if (m.stateless_adam)
      s.denominators = held_by_stateless_steps(n, bucket_sizes(chunks.size(), t, stage), dense_ranks, expert_ranks,
                                               t.optimizer == OptimizerKind::adam);
    if (m.precision_aware)
      s.widened_states = widened_states(m, std::max(ceil_div(n.dense, dense_ranks), ceil_div(n.experts, expert_ranks)));
  }
  if (chunks.front().adapters && t.loop.adapters_outside) put_adapters_outside(s, n, frozen, t.megatron.wrap_with_ddp);
  if (!use.trains) hold_no_states(s, t.megatron.wrap_with_ddp);
  if (m.fsdp != MegatronFsdpStrategy::off) put_under_fsdp(s, a, t, chunks.front());
  // bridges mark such a tower with average_gradients_across_tp_domain (megatron/core/distributed/finalize_model_grads.py,
  // 0.18: _allreduce_non_tensor_model_parallel_grads)
  if (use.trains && te.tensor > 1 && (tower_of_transformers(a, chunks.front()) || holds_tower_alone(a)))
    s.averaged = bytes_of(tower_elements(a, chunks.front()), t.reduce);
  s.placeholders = n.placeholders;
  hold_for_loss(s, a, t, chunks.back());
  // transformer_engine/pytorch/cpp_extensions/gemm.py (2.9): get_cublas_workspace_size_bytes, sm90 and later
  s.workspace = multiplies_with_te(a, chunks) ? 32 * kMiB + kKiB : 0;
  bool grouped = false;
  for (const auto& chunk : chunks) {
    grouped = grouped || (t.megatron.grouped_experts && expert_layers(a, chunk) > 0);
    s.permutations.push_back(last_routing(s, a, chunk, t));
  }
  // one more for each stream of the grouped product (transformer_engine/pytorch/module/base.py:
  // get_multi_stream_cublas_workspace)
  constexpr int kStreams = 4;
  s.workspaces = grouped ? 1 + kStreams : 1;
  const std::int64_t of_training =
      t.sequences_per_micro_batch > 0 ? t.sequences_per_micro_batch * t.sequence_tokens : t.tokens_per_micro_batch;
  if (use.log_probs && !use.passes_alone && t.logprob_tokens_per_micro_batch > 0 &&
      t.logprob_tokens_per_micro_batch != of_training)
    take_passes(s, a, t, use);
  return s;
}

}  // namespace oomplan
