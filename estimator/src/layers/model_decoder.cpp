#include "layers/model_pass.hpp"

#include <limits>
#include <memory>
#include <utility>

#include "job/kernel_sets.hpp"
#include "layers/archon.hpp"
#include "layers/archon_experts.hpp"
#include "layers/bloom.hpp"
#include "layers/compiled_layer.hpp"
#include "layers/foak.hpp"
#include "layers/mpt.hpp"
#include "layers/tensor_parallel.hpp"
#include "layers/titan.hpp"
#include "layers/torchtune.hpp"
#include "layers/vision_ops.hpp"

namespace oomplan {

using namespace ops;
using axis::B, axis::C, axis::K, axis::S, axis::T, axis::TK;

// A split vocabulary: rows of other ranks' tokens are zeros, the sum over the ranks is scattered. The gradient is made of the
// whole table on every rank (executed).
// Gemma4Model.forward (models/gemma4/modeling_gemma4.py, 5.23) says which tokens are images, videos or sound, and has pad tokens
// in their place; where it has per-layer embeddings, embeddings of pad tokens too. Text alone goes through all of that.
bool ModelPass::marks_tokens() const { return idle_ && a_.tower.kind.starts_with("gemma4"); }

void ModelPass::mark_tokens() {
  enter(StationPlace::embedding);
  const auto mask = [&](const char* name) { return g_.make(name, {B, all_}, DType::boolean, Category::buffers); };
  marked_.masks = {mask("image_mask"), mask("video_mask"), mask("audio_mask")};
  {
    Tensor either = mask("image_or_video_mask");
    marked_.masks.push_back(mask("multimodal_mask"));
  }
  const Tensor copied = g_.make("llm_input_ids.clone", {B, all_}, DType::int64, Category::inputs);
  marked_.ids = g_.make("llm_input_ids", {B, all_}, DType::int64, Category::inputs);
}

Tensor ModelPass::embed() {
  enter(StationPlace::embedding);
  if (!o_.front)
    return g_.make("hidden.arrived", {B, embedded_, Dim(width_)}, g_.leaves[static_cast<std::size_t>(embedding_)].dtype);
  Tensor w = g_.leaf(embedding_);
  Tensor out = g_.make("embedding", {B, embedded_, Dim(width_)}, w.dtype);
  const Shape shape = w.shape = {vocabulary_, width_};
  // otherwise held by the caller in any case
  const Saved ids = marked_.ids ? g_.save(marked_.ids) : g_.hooks != nullptr ? g_.save(input_ids_) : Saved();
  g_.record(out, "EmbeddingBackward0", {&w}, [this, shape, ids](Gradients in) {
    (void)ids.get();
    return Gradients{embedding_gradient(g_, "embedding_backward", shape, in[0].dtype, {B, embedded_}, kernels_.embedding_sort)};
  });
  g_.leave(embedding_);
  if (embedding_in_ >= 0) out = adapted_embedding(std::move(out));
  out = reduce_tokens(g_, std::move(out), kernels_, "embedding.reduced");
  const bool collects = o_.training && kernels_.adapters.input_gradients && !out.grad_fn;  // only a leaf collects
  if (collects && !code_.scales_in_module) collect_gradient(out);
  const bool is_unit = kernels_.casts_embedding_output;
  if (!code_.scales_in_module) out = cast_output(std::move(out), is_unit, "embedding.output_cast");
  if (!code_.scales_embedding && !a_.scaled_embedding) return out;
  Tensor scaled = scale(g_, out, "embedding.scaled");
  if (a_.scaled_embedding) bare_embedding_ = out;
  if (collects && code_.scales_in_module) collect_gradient(scaled);
  return cast_output(std::move(scaled), is_unit && code_.scales_in_module, "embedding.output_cast");
}

// result + (F.embedding(x, A.T) @ B.T) * scaling, in the format of the pair, cast back (huggingface/peft
// src/peft/tuners/lora/layer.py Embedding.forward, 0.21.2). The gradient of A comes as the transposed one of a table, which is
// copied to A's own layout.
Tensor ModelPass::adapted_embedding(Tensor bare) {
  const DType back = bare.dtype;
  Tensor table = g_.leaf(embedding_in_);
  const Dim rank = table.shape[0];
  const Shape turned{table.shape[1], rank}, own = table.shape;
  Tensor low = g_.make("embedding.lora_A", {B, embedded_, rank}, table.dtype);
  const Saved ids = g_.hooks != nullptr ? g_.save(input_ids_) : Saved();
  g_.record(low, "EmbeddingBackward0", {&table}, [this, turned, own, ids](Gradients in) {
    (void)ids.get();
    const Tensor whole =
        embedding_gradient(g_, "embedding.lora_A_backward", turned, in[0].dtype, {B, embedded_}, kernels_.embedding_sort);
    return Gradients{g_.make("embedding.lora_A_gradient", own, in[0].dtype, Category::gradients)};
  });
  Tensor high = linear(g_, std::move(low), embedding_out_, -1, T, bare.shape, "embedding.lora_B");
  Tensor scaled = scale(g_, std::move(high), "embedding.lora_scaled");
  Tensor sum = add(g_, bare, std::move(scaled), "embedding.lora_sum");
  bare.reset();
  return to(g_, std::move(sum), back, "embedding.adapted");
}

// output.requires_grad_(True): a leaf, which lives with its gradient as long as the graph that accumulates into it.
void ModelPass::collect_gradient(Tensor& out) {
  input_leaf_ = out;
  g_.storages[static_cast<std::size_t>(out.storage())].saved = true;
  auto collector = std::make_shared<Node>();
  collector->name = "AccumulateGrad";
  collector->sequence = std::numeric_limits<std::int64_t>::max();
  collector->scope = g_.scope;
  collector->apply = [this](Gradients given) {
    input_gradient_ = std::move(given[0]);
    return Gradients{};
  };
  out.grad_fn = std::move(collector);
}

// Rows of the learned position table: a name of the model, like what they are added to.
Tensor ModelPass::position_rows() {
  positions_ = g_.make("position_ids", {code_.positions_by_sequence || o_.head == LossHead::next_token ? B : Dim(1), S},
                       DType::int64, Category::inputs);
  Tensor w = g_.leaf(position_table_);
  Tensor out = g_.make("position_embedding", {positions_.shape[0], S, Dim(a_.hidden)}, w.dtype);
  const Shape shape = w.shape;
  // OPT's module adds an offset to them
  const Tensor rows = code_.positions_by_sequence ? g_.make("position_rows", positions_.shape, DType::int64) : positions_;
  const Saved ids = g_.save(rows);
  g_.record(out, "EmbeddingBackward0", {&w}, [this, shape, ids](Gradients in) {
    return Gradients{
        embedding_gradient(g_, "position_embedding_backward", shape, in[0].dtype, ids.get().shape, kernels_.position_sort)};
  });
  return out;
}

// Neither a distance nor a state needs numbers of positions.
bool ModelPass::counts_positions() const {
  const bool single = a_.runs.front().layer.norm_place == NormPlace::single;
  return !code_.alibi && code_.own != OwnCode::mpt && !single &&
         (idle_ || !kernels_.vision.by_axis);  // which come with the images
}

// Positions, masks, cos and sin.
Preamble ModelPass::preamble(DType dtype) {
  enter(StationPlace::preamble);
  if (!positions_ && counts_positions())
    positions_ = g_.make("position_ids", {o_.kernels.positions_by_row ? B : Dim(1), all_}, DType::int64, Category::inputs);
  return make_preamble(g_, a_, o_.kernels, dtype);
}

// What a layer's forward gets: FSDP2 casts floating-point arguments to the compute dtype (cast_forward_inputs), in front of the
// layer's gather (torch/distributed/fsdp/_fully_shard/_fsdp_state.py _pre_forward, 2.13).
LayerContext ModelPass::arguments(LayerContext given) {
  const std::string outside = std::exchange(g_.prefix, "layer.");
  if (kernels_.casts_layer_inputs && given.alibi) given.alibi = to(g_, given.alibi, kernels_.parameters, "alibi_cast");
  if (kernels_.casts_layer_inputs && given.cos && given.sin) {  // a complex table is not cast
    given.cos = to(g_, given.cos, kernels_.parameters, "rotary.cos_cast");
    given.sin = to(g_, given.sin, kernels_.parameters, "rotary.sin_cast");
  }
  g_.prefix = outside;
  return given;
}

// The same of the hidden states, where the residual stream is wider than the compute dtype (Mamba); nothing otherwise. It is
// cast in front of the layer's gather, and backward behind its reduction.
Tensor ModelPass::cast_hidden(const Tensor& hidden) {
  if (!kernels_.casts_layer_inputs || hidden.dtype == kernels_.parameters) return {};
  g_.prefix.clear();
  Tensor out = g_.make("layer.input_cast", hidden.shape, kernels_.parameters);
  const DType from = hidden.dtype;  // a name of its own: the last layer's output is not cast
  g_.record(out, "ToCopyBackward0", {&hidden},
            [this, from](Gradients in) { return Gradients{gradient(g_, "input_cast_backward", in[0].shape, from)}; });
  return out;
}

// output_dtype: behind a unit's hooks (_fsdp_state.py _post_forward, _cast_output_dtype, 2.13).
Tensor ModelPass::cast_output(Tensor out, bool is_unit, std::string_view name) {
  if (!is_unit || !kernels_.unit_output || !out || out.dtype == *kernels_.unit_output) return out;
  return to(g_, std::move(out), *kernels_.unit_output, std::string(name));
}

// _deepstack_process.
void ModelPass::add_features(Tensor& hidden, const VisionNames& images, std::size_t layer) {
  enter(StationPlace::deepstack, static_cast<int>(layer));
  g_.prefix = "deepstack.";
  Tensor sum = vision_ops::add_at(g_, hidden, images.image_mask, images.deepstack[layer], kernels_.kernel_internals);
  hidden = std::move(sum);
}

Tensor ModelPass::run_one(std::size_t r, std::size_t number, const LayerContext& context, const Tensor& x) {
  if (stash_) {
    stash_->in_layers = true;
    Tensor out = run_unhooked(r, number, context, x);
    stash_->in_layers = false;
    return out;
  }
  if (!offload_ || offload_->around_model()) return run_unhooked(r, number, context, x);
  g_.hooks = &*offload_;
  Tensor out = offload_->commit(run_unhooked(r, number, context, x));
  g_.hooks = nullptr;
  return out;
}

Tensor ModelPass::run_unhooked(std::size_t r, std::size_t number, const LayerContext& context, const Tensor& x) {
  const Layer& layer = a_.runs[r].layer;
  const LayerLeaves& leaves = layers_[number];
  // transformers 5.23 checkpoints `forward`: FSDP2's hooks stay outside, and a checkpoint keeps the arguments that they cast
  LayerContext given = context;
  if (layer.mixer.kind != MixerKind::attention && layer.mixer.kind != MixerKind::mla) given.mask.reset();
  if (kernels_.compile)
    return run_compiled_layer(g_, a_, layer, leaves, kernels_, {o_.recompute, o_.training, std::move(given.cos)}, x);
  // positions are a keyword of transformers' layers, which a checkpoint's function holds
  const Tensor positions = of_transformers(kernels_.kernels) ? positions_ : Tensor();
  const auto body = [this, &layer, &leaves, given, positions](const Tensor& in) {
    if (kernels_.kernels == Kernels::torchtitan) return run_titan_layer(g_, a_, layer, leaves, kernels_, in);
    if (kernels_.kernels == Kernels::archon) return run_archon_layer(g_, a_, layer, leaves, kernels_, given, in);
    if (is_litgpt(kernels_.kernels)) return run_litgpt_layer(g_, a_, layer, leaves, kernels_, in, before_);
    if (is_torchtune(kernels_.kernels)) return run_torchtune_layer(g_, a_, layer, leaves, kernels_, in);
    return run_layer(g_, a_, layer, leaves, kernels_, given, in);
  };
  if (!o_.training || o_.recompute == Recompute::none || !spaced_.checkpointed[r]) return body(x);
  if (o_.recompute == Recompute::selective) return g_.checkpoint_selective(x, body);
  if (!o_.reentrant) return g_.checkpoint(x, body);
  if (offload_ && offload_->in_groups()) {
    // verl flattens a layer's arguments: tensors among them are saved, (cos, sin) is an attribute (_ckpt_forward)
    arguments_.push_back({given, {}});
    return g_.checkpoint_reentrant(x, body, positions_ ? std::vector<Tensor>{positions_} : std::vector<Tensor>{});
  }
  arguments_.push_back({given, positions_});
  if (given.layer_input || layer.mixer.stores_kv) return with_layer_input(layer, leaves, given, x);
  if (!code_.mask_by_position || !given.mask) return g_.checkpoint_reentrant(x, body);
  arguments_.back().context.mask.reset();
  return g_.checkpoint_reentrant(x, body, {given.mask});
}

// A layer whose own input is an argument beside the hidden states, which gets a gradient. The keys that a layer stores lead
// back to its detached input, which so stays with its gradient as long as their name does.
Tensor ModelPass::with_layer_input(const Layer& layer, const LayerLeaves& leaves, const LayerContext& given, const Tensor& x) {
  const auto own = std::make_shared<LayerContext>(given);
  arguments_.back().context.layer_input.reset();  // no keyword
  const auto body = [this, &layer, &leaves, own](const Tensor& in) {
    g_.keeps_checkpoints = kernels_.keeps_checkpoints || layer.mixer.stores_kv;
    return run_layer(g_, a_, layer, leaves, kernels_, *own, in);
  };
  return g_.checkpoint_reentrant(x, body, {}, own->layer_input ? &own->layer_input : nullptr);
}

// Transformer.forward of torchtitan, GPT.forward of LitGPT, TransformerDecoder.forward of torchtune, Archon's models: one
// name, rebound.
Tensor ModelPass::titan_decoder() {
  Tensor hidden = embed();  // between the halves of a layer tensors are local
  std::size_t number = 0;
  for (std::size_t r = 0; r < a_.runs.size(); ++r) {
    for (int u = 0; u < units(r); ++u) {
      LayerContext context;
      if (kernels_.kernels == Kernels::archon) context = archon_arguments(g_, a_, kernels_);  // in front of the layer's gather
      context.mask = tree_mask_;
      enter(StationPlace::layers, static_cast<int>(r), u);
      g_.prefix = "layer.";
      hidden = run_one(r, number++, context, hidden);
    }
  }
  g_.prefix.clear();
  enter(StationPlace::norm);
  if (is_torchtune(kernels_.kernels)) return hidden = torchtune_norm(g_, hidden, norm_, "norm");
  if (kernels_.kernels == Kernels::archon) return hidden = archon_norm(g_, hidden, norm_, kernels_, "norm");
  hidden = is_litgpt(kernels_.kernels) ? litgpt_norm(g_, a_.final_norm, hidden, norm_, kernels_, "norm")
                                       : titan_norm(g_, hidden, norm_, kernels_, "norm");
  return hidden;
}

Tensor ModelPass::decoder() {
  Tensor hidden = language_model();
  marked_ = {};
  return hidden;
}

/// verl/models/transformers/monkey_patch.py, 0.7 to 0.10: patch_vlm_for_ulysses_input_slicing, of packed sequences a view. One
/// rank may have all images.
Tensor ModelPass::own_tokens(const Tensor& whole, VisionNames& images) {
  const Dim tokens = axis::S;
  if (images.image_mask) images.image_mask.shape = {B, tokens};
  images.positions = g_.make("position_ids_of_rank", {Dim(4), B, tokens}, DType::int64, Category::buffers);
  return slice(g_, whole, {B, tokens, whole.shape[2]});
}

// LlamaModel.forward: inputs_embeds stays a local variable to the end.
Tensor ModelPass::language_model() {
  if (kernels_.kernels == Kernels::torchtitan || kernels_.kernels == Kernels::archon || is_litgpt(kernels_.kernels) ||
      is_torchtune(kernels_.kernels))
    return titan_decoder();
  const DistributedGuard dtensors(g_, kernels_.tensor > 1);
  VisionNames images;  // of the model around the language model, which returns behind it
  if (marks_tokens()) mark_tokens();
  Tensor inputs_embeds = embed();
  if (tower_) tower_->merge(inputs_embeds, images);
  Tensor whole_embeds;  // a keyword of the function around the language model
  if (tower_ && kernels_.ulysses > 1) {
    whole_embeds = inputs_embeds;
    inputs_embeds = own_tokens(whole_embeds, images);
  }
  enter(StationPlace::preamble);
  const DType of_masks = inputs_embeds.dtype;  // OPT makes them of what it has not projected yet
  if (project_in_ >= 0) {
    Tensor wide = linear(g_, inputs_embeds, project_in_, -1, T, {B, all_, Dim(a_.hidden)}, "embedding.projected");
    inputs_embeds = std::move(wide);
  }
  Tensor layer_inputs;
  if (a_.per_layer_vocab > 0) {
    if (marks_tokens()) marked_.embeds = g_.make("llm_inputs_embeds", inputs_embeds.shape, inputs_embeds.dtype);
    Tensor tokens =
        layer_tokens(g_, a_, layer_inputs_, marked_.ids ? marked_.ids : input_ids_, bool(marked_.ids), kernels_.embedding_sort);
    if (marks_tokens()) marked_.layer_tokens = tokens;
    layer_inputs = make_layer_inputs(g_, code_, a_, layer_inputs_, inputs_embeds, std::move(tokens));
  }
  Tensor hidden = inputs_embeds, position_embeds;
  const DType of_stream = inputs_embeds.dtype;
  if (!o_.front) inputs_embeds.reset();
  if (bare_embedding_) inputs_embeds = std::exchange(bare_embedding_, {});
  Copies copies;
  if (altup()) {
    copies = make_copies(g_, a_, copies_, inputs_embeds);
    hidden = std::exchange(copies.stacked, {});
  }
  Tensor position_mask;
  if (position_table_ >= 0) {
    if (code_.positions_by_sequence && !padding_) position_mask = g_.make("position_mask", {B, S}, DType::fp32);
    position_embeds = position_rows();
    Tensor sum = add(g_, inputs_embeds, position_embeds, "embedding.with_positions");
    hidden = std::move(sum);
  }
  if (o_.training && a_.embedding_dropout > 0) {
    Tensor dropped = dropout(g_, hidden, "embedding.dropped");
    hidden = std::move(dropped);
    if (code_.rebinds_embedding) inputs_embeds = hidden;
  }
  Tensor slopes, alibi, returned;
  if (code_.alibi) {
    Tensor normed = run_norm(g_, code_.norm, hidden, embedding_norm_, "embedding_norm");
    hidden = std::move(normed);
    alibi = make_alibi(g_, a_.runs.front().layer.mixer.heads, hidden.dtype, slopes);
  }
  if (code_.own == OwnCode::mpt) alibi = make_mpt_alibi(g_, a_.runs.front().layer.mixer.heads, a_.max_positions);
  Preamble shared = preamble(project_in_ >= 0 ? of_masks : of_stream);
  shared.full.cache = shared.windowed.cache = &caches_;
  shared.full.returned = &returned;
  if (code_.norms_values) shared.full.shared = shared.windowed.shared = std::make_shared<SharedKv>();
  if (code_.own == OwnCode::mpt)
    shared.full.alibi = shared.windowed.alibi = std::move(alibi);
  else
    shared.full.alibi = shared.windowed.alibi = alibi;  // a keyword of layers, and a name of the model
  std::size_t number = 0;
  Tensor chosen, chosen_next;  // `hidden_states, topk_indices = decoder_layer(...)`
  if (code_.returns_chosen) shared.full.chosen_out = &chosen_next;
  Tensor layer_outputs;  // Qwen3-VL's model has a name for what a layer returned, beside what features are added to
  for (std::size_t r = 0; r < a_.runs.size(); ++r) {
    for (int u = 0; u < units(r); ++u) {
      const Tensor cast = cast_hidden(hidden);
      const bool windowed = a_.runs[r].layer.mixer.span != AttentionSpan::full;
      LayerContext given = arguments(windowed ? shared.windowed : shared.full);
      enter(StationPlace::layers, static_cast<int>(r), u);
      g_.prefix = "layer.";
      if (!windowed) given.chosen = chosen;  // prev_topk_indices
      if (layer_inputs) given.layer_input = input_of_layer(g_, layer_inputs);
      hidden = cast_output(run_one(r, number++, given, cast ? cast : hidden), true, "output_cast");
      given = {};
      chosen = std::exchange(chosen_next, {});
      if (deepstack_layers_ > 0) layer_outputs = hidden;
    }
    if (r < deepstack_layers_) add_features(hidden, images, r);
  }
  g_.prefix.clear();
  if (!o_.back) return hidden;
  enter(StationPlace::norm);
  if (altup()) hidden = join_copies(g_, a_, copies_, Tensor(hidden), copies.list);
  const Tensor output =
      code_.alibi || code_.own != OwnCode::none ? hidden : Tensor();  // `outputs` of the last layer is a name of the model
  if (a_.final_norm != NormKind::none)
    hidden = o_.kernels.foak.rms_norm ? foak::rms_norm(g_, hidden, norm_.weight, "norm")
                                      : run_norm(g_, code_.norm, hidden, norm_, "norm", o_.kernels.liger);
  if (project_out_ < 0) return hidden;
  Tensor narrow = linear(g_, hidden, project_out_, -1, T, {B, all_, Dim(width_)}, "hidden_projected");
  hidden = std::move(narrow);
  return hidden;
}

}  // namespace oomplan
