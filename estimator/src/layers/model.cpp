#include "layers/model.hpp"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include <oomplan/units/errors.hpp>

#include "layers/activation_offload.hpp"
#include "layers/archon.hpp"
#include "layers/archon_experts.hpp"
#include "layers/bloom.hpp"
#include "layers/compiled_layer.hpp"
#include "layers/every_nth.hpp"
#include "layers/experts.hpp"
#include "layers/foak.hpp"
#include "layers/gemma3n.hpp"
#include "layers/heads_trl.hpp"
#include "layers/heads_verl.hpp"
#include "layers/layer_inputs.hpp"
#include "layers/litgpt.hpp"
#include "layers/mpt.hpp"
#include "layers/ops.hpp"
#include "layers/preamble.hpp"
#include "layers/stash_offload.hpp"
#include "layers/tensor_parallel.hpp"
#include "layers/titan.hpp"
#include "layers/torchtune.hpp"
#include "layers/vectors.hpp"
#include "layers/vision.hpp"
#include "layers/vision_ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::C, axis::K, axis::S, axis::T, axis::TK;

class Runner {
 public:
  Runner(Eager& g, const Architecture& a, const PassOptions& o)
      : g_(g), spaced_(runs_of(a, o)), o_(o), code_(family_code(a.family)), kernels_(o.kernels), vocabulary_(a.vocab) {
    kernels_.hidden_dropout = o.training && a.hidden_dropout > 0;
    kernels_.softcap = a.runs.front().layer.mixer.softcap;
    kernels_.attention_dropout = o.training && a.attention_dropout > 0;
    g.frozen_keeps_input = o.kernels.frozen_keeps_input;
    g.low_rank_dropout = o.training && o.kernels.adapters.dropout;
    // routed while nothing is recorded; GRPO's gradient pass goes through peft's own forward (grpo.py _loss, base.py
    // _get_logprobs)
    g.low_rank_apart = o.kernels.framework == Framework::agilerl && !o.training;
    g.packed = o.kernels.packed;
    g.keeps_formats = o.kernels.keeps_formats;
    g.offload_checkpoints = o.kernels.offload_checkpoints;
    g.keeps_checkpoints = o.kernels.keeps_checkpoints;
    g.keeps_recomputed_graph =
        std::any_of(a.runs.begin(), a.runs.end(), [](const LayerRun& r) { return r.layer.mixer.stores_kv; });
    g.recomputes_all = o.kernels.kernels == Kernels::archon;
  }

  ModelRun run() {
    plan_stations();
    declare();
    g_.autocast = o_.kernels.autocast;
    g_.grad_enabled = o_.training;
    begin_offload();
    Tensor loss = forward();
    if (o_.kernels.offload_activations != OffloadActivations::trl) g_.hooks = nullptr;  // TRL's stand around the whole step
    if (tower_) tower_->leave_forward();
    g_.autocast = false;
    if (o_.training) {
      enter(StationPlace::finish);
      leave_step();
      Tensor one = g_.make("loss.gradient", {}, DType::fp32, Category::temporaries);
      g_.backward(loss, std::move(one));
      g_.in_backward = true;
      enter(StationPlace::inputs);
      g_.let_checkpoints_go();
      if (stash_) stash_->leave_backward();
      g_.hooks = nullptr;
      offload_.reset();
    }
    // The loss and what the caller kept go last.
    leave_step();
    kept_outputs_.reset();
    loss.reset();
    input_leaf_.reset();
    input_gradient_.reset();
    arguments_.clear();
    input_ids_.reset();
    labels_.reset();
    padding_.reset();
    packed_positions_.reset();
    if (tower_) tower_->leave_inputs();
    return std::move(out_);
  }

 private:
  static SpacedRuns runs_of(const Architecture& a, const PassOptions& o) {
    SpacedRuns runs =
        spaced_runs(is_litgpt(o.kernels.kernels) ? litgpt_architecture(a, o.kernels.adapters.kind) : part_of(a, o.kernels.tensor),
                    o.recompute_every, o.kernels.kernels == Kernels::torchtitan || o.kernels.kernels == Kernels::archon);
    const std::int64_t apart =
        std::max<std::int64_t>({begins_late(o) ? 1 : 0, o.kernels.vision.images > 0 ? a.tower.deepstack : 0, stash_warm_up(o)});
    if (apart > 0) return first_apart(std::move(runs), apart);
    return o.kernels.offload_activations == OffloadActivations::verl ? first_apart(std::move(runs)) : runs;
  }
  /// The graph begins behind the first layer's rotation: the tables of positions go with the second layer then.
  static bool begins_late(const PassOptions& o) {
    const AdapterOptions& adapters = o.kernels.adapters;
    if (adapters.rank == 0 || adapters.input_gradients || adapters.targets.empty()) return false;
    const auto rotated = [](const std::string& target) {
      return target.find("q_") == 0 || target.find("k_") == 0 || target.find("kv_") == 0 || target.find("qkv") == 0 ||
             target == "query_key_value" || target == "c_attn";
    };
    return std::none_of(adapters.targets.begin(), adapters.targets.end(), rotated);
  }
  int simulated_layers() const {
    int all = 0;
    for (const Station& s : out_.stations)
      if (s.place == StationPlace::layers) all += s.simulated;
    return all;
  }

  void begin_offload() {
    const OffloadActivations how = o_.kernels.offload_activations;
    if (!o_.training || how == OffloadActivations::none) return;
    if (offloads_by_stash(how))
      g_.hooks = &stash_.emplace(g_, how, o_.recompute == Recompute::full);
    else
      offload_.emplace(g_, how, simulated_layers());
    if (offload_ && offload_->around_model()) g_.hooks = &*offload_;
  }

  /// What the function that computes the loss names goes when it returns: in front of the backward pass, behind a reference's.
  void leave_step() {
    logged_.clear();
    const bool outer = std::exchange(g_.in_backward, o_.training);
    step_names_.reset();
    g_.leave_autocast();
    g_.in_backward = outer;
  }

  void plan_stations() {
    const auto single = [&](StationPlace p) {
      Station s;
      s.place = p;
      out_.stations.push_back(s);
    };
    single(StationPlace::inputs);
    single(StationPlace::embedding);
    if (tower_) tower_->plan(out_.stations, a_.runs.size());
    single(StationPlace::preamble);
    for (std::size_t r = 0; r < a_.runs.size(); ++r) {
      Station s;
      s.place = StationPlace::layers;
      s.run = static_cast<int>(r);
      s.count = a_.runs[r].count;
      s.checkpointed = o_.training && o_.recompute == Recompute::full && spaced_.checkpointed[r];
      s.simulated = static_cast<int>(std::min<std::int64_t>(kSimulatedUnits, s.count));
      out_.stations.push_back(s);
      if (r >= deepstack_layers_) continue;
      single(StationPlace::deepstack);
      out_.stations.back().run = s.run;
    }
    single(StationPlace::norm);
    single(StationPlace::head);
    single(StationPlace::loss);
    if (runs_in_chunks(o_.head)) {
      Station s;
      s.place = StationPlace::chunks;
      s.count = 0;
      s.simulated = o_.chunks;
      out_.stations.push_back(s);
    }
    single(StationPlace::finish);
  }

  /// Layers of a run that are simulated.
  int units(std::size_t run) const { return static_cast<int>(std::min<std::int64_t>(kSimulatedUnits, a_.runs[run].count)); }

  void enter(StationPlace place, int run = -1, int unit = 0) {
    for (std::size_t i = 0; i < out_.stations.size(); ++i)
      if (out_.stations[i].place == place && out_.stations[i].run == run)
        g_.scope = static_cast<int>(i) * kUnitsPerStation + unit;
  }

  void declare() {
    const DType dtype = o_.kernels.parameters, outer = o_.kernels.casts_heads ? DType::bf16 : dtype;
    if (tower_) tower_->declare();
    enter(StationPlace::embedding);
    embedding_ = g_.parameter("model.embed_tokens.weight", {a_.vocab, width_}, outer);
    enter(StationPlace::preamble);  // what else stands in front of the layers is no part of a unit around the embedding's module
    if (a_.position_rows > 0)
      position_table_ = g_.parameter("model.embed_positions.weight", {a_.position_rows, a_.hidden}, outer);
    if (a_.per_layer_vocab > 0) layer_inputs_ = declare_layer_inputs(g_, a_, outer, dtype, kernels_.adapters);
    if (altup()) copies_ = declare_copies(g_, a_, dtype, kernels_.adapters);
    if (a_.embedding_width > 0) {
      project_out_ = g_.parameter("model.project_out.weight", {width_, a_.hidden}, dtype);
      project_in_ = g_.parameter("model.project_in.weight", {a_.hidden, width_}, dtype);
    }
    if (a_.embedding_norm) embedding_norm_ = declare_norm(g_, NormKind::layer, "model.embed_norm", a_.hidden, dtype);
    if (kernels_.adapters.kind == AdapterKind::vera && kernels_.adapters.rank > 0) declare_vera_pair(g_, a_, kernels_.adapters);
    std::int64_t number = 0;  // of a run's first layer
    for (std::size_t r = 0; r < a_.runs.size(); number += a_.runs[r++].count) {
      for (int u = 0; u < units(r); ++u) {
        enter(StationPlace::layers, static_cast<int>(r), u);
        g_.prefix = "layer.";
        const Layer& layer = a_.runs[r].layer;
        if (kernels_.kernels == Kernels::archon) {
          layers_.push_back(declare_archon_layer(g_, a_, layer, dtype));
          continue;
        }
        layers_.push_back(is_litgpt(kernels_.kernels)
                              ? declare_litgpt_layer(g_, a_, layer, dtype, kernels_.adapters, number)
                              : declare_layer(g_, a_, layer, dtype, kernels_.adapters, expert_modules(kernels_, code_)));
      }
    }
    g_.prefix.clear();
    enter(StationPlace::norm);
    norm_ = declare_norm(g_, a_.final_norm, "model.norm", a_.hidden, dtype);
    enter(StationPlace::head);
    const bool archon = kernels_.kernels == Kernels::archon;
    if (o_.critic)
      head_ = g_.parameter("score.weight", {1, width_}, dtype);
    else
      head_ = a_.tied && !archon ? embedding_ : g_.parameter("lm_head.weight", {a_.vocab, width_}, outer);
    if (archon && a_.tied && !o_.critic) g_.leaves.back().shared = true;
    if (!o_.critic && a_.head_bias) head_bias_ = g_.parameter("lm_head.bias", {a_.vocab}, dtype);
    if (is_litgpt(kernels_.kernels)) adapt_litgpt_head(g_, a_, head_, kernels_.adapters);
    if (kernels_.adapters.rank > 0) freeze();
    if (o_.adapters_off)
      for (Leaf& leaf : g_.leaves) leaf.trainable = false;
  }

  /// All parameters but the adapters.
  void freeze() {
    std::vector<bool> adapter(g_.leaves.size());
    for (const auto& leaf : g_.leaves)
      for (const int pair : {leaf.low_rank_in, leaf.low_rank_out, leaf.magnitude, leaf.scale, leaf.shift, leaf.inner_scale})
        if (pair >= 0) adapter[static_cast<std::size_t>(pair)] = true;
    for (const auto& layer : layers_)
      for (const int pair : {layer.qkv_lora_a, layer.qkv_lora_b, layer.gates})
        if (pair >= 0) adapter[static_cast<std::size_t>(pair)] = true;
    if (kernels_.adapters.kind == AdapterKind::adapter_v2) choose_norms(adapter);
    for (std::size_t i = 0; i < adapter.size(); ++i) g_.leaves[i].trainable = adapter[i];
    if (kernels_.adapters.joint) train_whole_units(adapter);
    if (std::find(adapter.begin(), adapter.end(), true) == adapter.end())
      throw InputError(Problem{{}, a_.name, "a model with one of the adapters' targets", "", "no linear layer has such a name"});
  }

  /// LitGPT's second adapter trains the norms too, but for those behind a half (adapter_v2.py adapter_filter).
  void choose_norms(std::vector<bool>& adapter) const {
    std::vector<NormLeaf> norms{norm_};
    for (const auto& layer : layers_) norms.insert(norms.end(), {layer.before_attention, layer.before_feed_forward});
    for (const NormLeaf& norm : norms)
      for (const int leaf : {norm.weight, norm.bias})
        if (leaf >= 0) adapter[static_cast<std::size_t>(leaf)] = true;
  }

  /// FSDP1 with use_orig_params: views of a flat parameter ask for gradients if any part of it does
  /// (torch/distributed/fsdp/_flat_param.py _use_unsharded_views, 2.13). A layer is a unit, the root has the rest.
  void train_whole_units(const std::vector<bool>& adapter) {
    const auto unit_of = [&](const Leaf& leaf) {
      const int station = leaf.scope / kUnitsPerStation;
      return out_.stations[static_cast<std::size_t>(station)].place == StationPlace::layers ? station : -1;
    };
    std::set<int> units;
    for (std::size_t i = 0; i < adapter.size(); ++i)
      if (adapter[i]) units.insert(unit_of(g_.leaves[i]));
    for (std::size_t i = 0; i < adapter.size(); ++i) {
      if (adapter[i] || !units.contains(unit_of(g_.leaves[i]))) continue;
      g_.leaves[i].trainable = g_.leaves[i].passive = true;
    }
  }

  /// A split vocabulary: rows of other ranks' tokens are zeros, the sum over the ranks is scattered. The gradient is made of the
  /// whole table on every rank (executed).
  Tensor embed() {
    enter(StationPlace::embedding);
    Tensor w = g_.leaf(embedding_);
    Tensor out = g_.make("embedding", {B, all_, Dim(width_)}, w.dtype);
    const Shape shape = w.shape = {vocabulary_, width_};
    const Saved ids = g_.hooks != nullptr ? g_.save(input_ids_) : Saved();  // otherwise held by the caller in any case
    g_.record(out, "EmbeddingBackward0", {&w}, [this, shape, ids](Gradients in) {
      (void)ids.get();
      return Gradients{g_.make("embedding_backward", shape, in[0].dtype, Category::gradients)};
    });
    g_.leave(embedding_);
    out = reduce_tokens(g_, std::move(out), kernels_, "embedding.reduced");
    const bool collects = o_.training && kernels_.adapters.input_gradients;
    if (collects && !code_.scales_in_module) collect_gradient(out);
    if (!code_.scales_embedding && !a_.scaled_embedding) return out;
    Tensor scaled = scale(g_, out, "embedding.scaled");
    if (a_.scaled_embedding) bare_embedding_ = out;
    if (collects && code_.scales_in_module) collect_gradient(scaled);
    return scaled;
  }

  /// output.requires_grad_(True): a leaf, which lives with its gradient as long as the graph that accumulates into it.
  void collect_gradient(Tensor& out) {
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

  /// Rows of the learned position table: a name of the model, like what they are added to.
  Tensor position_rows() {
    positions_ = g_.make("position_ids", {code_.positions_by_sequence ? B : Dim(1), S}, DType::int64, Category::inputs);
    Tensor w = g_.leaf(position_table_);
    Tensor out = g_.make("position_embedding", {positions_.shape[0], S, Dim(a_.hidden)}, w.dtype);
    const Shape shape = w.shape;
    // OPT's module adds an offset to them
    const Tensor rows = code_.positions_by_sequence ? g_.make("position_rows", positions_.shape, DType::int64) : positions_;
    const Saved ids = g_.save(rows);
    g_.record(out, "EmbeddingBackward0", {&w}, [this, shape, ids](Gradients in) {
      (void)ids.get();
      return Gradients{g_.make("position_embedding_backward", shape, in[0].dtype, Category::gradients)};
    });
    return out;
  }

  bool altup() const { return a_.runs.front().layer.altup_inputs > 0; }
  /// Neither a distance nor a state needs numbers of positions.
  bool counts_positions() const {
    const bool single = a_.runs.front().layer.norm_place == NormPlace::single;
    return !code_.alibi && code_.own != OwnCode::mpt && !single && !kernels_.vision.by_axis;  // which come with the images
  }

  /// Positions, masks, cos and sin.
  Preamble preamble(DType dtype) {
    enter(StationPlace::preamble);
    if (!positions_ && counts_positions())
      positions_ = g_.make("position_ids", {o_.kernels.positions_by_row ? B : Dim(1), all_}, DType::int64, Category::inputs);
    return make_preamble(g_, a_, o_.kernels, dtype);
  }

  /// What a layer's forward gets: FSDP2 casts floating-point arguments to the compute dtype in front of it (cast_forward_inputs).
  LayerContext arguments(LayerContext given) {
    if (kernels_.casts_layer_inputs && given.alibi) given.alibi = to(g_, given.alibi, kernels_.parameters, "alibi_cast");
    if (!kernels_.casts_layer_inputs || !given.cos || !given.sin) return given;  // a complex table is not cast
    given.cos = to(g_, given.cos, kernels_.parameters, "rotary.cos_cast");
    given.sin = to(g_, given.sin, kernels_.parameters, "rotary.sin_cast");
    return given;
  }

  /// The same of the hidden states, where the residual stream is wider than the compute dtype (Mamba); nothing otherwise. It is
  /// cast in front of the layer's gather, and backward behind its reduction.
  Tensor cast_hidden(const Tensor& hidden) {
    if (!kernels_.casts_layer_inputs || hidden.dtype == kernels_.parameters) return {};
    g_.prefix.clear();
    Tensor out = g_.make("layer.input_cast", hidden.shape, kernels_.parameters);
    const DType from = hidden.dtype;  // a name of its own: the last layer's output is not cast
    g_.record(out, "ToCopyBackward0", {&hidden},
              [this, from](Gradients in) { return Gradients{gradient(g_, "input_cast_backward", in[0].shape, from)}; });
    return out;
  }

  /// _deepstack_process.
  void add_features(Tensor& hidden, const VisionNames& images, std::size_t layer) {
    enter(StationPlace::deepstack, static_cast<int>(layer));
    g_.prefix = "deepstack.";
    Tensor sum = vision_ops::add_at(g_, hidden, images.image_mask, images.deepstack[layer], kernels_.kernel_internals);
    hidden = std::move(sum);
  }

  Tensor run_one(std::size_t r, std::size_t number, const LayerContext& context, const Tensor& x) {
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

  Tensor run_unhooked(std::size_t r, std::size_t number, const LayerContext& context, const Tensor& x) {
    const Layer& layer = a_.runs[r].layer;
    const LayerLeaves& leaves = layers_[number];
    // transformers 5.23 checkpoints `forward`: FSDP2's hooks stay outside, and a checkpoint keeps the arguments that they cast
    LayerContext given = kernels_.kernels == Kernels::archon ? archon_arguments(g_, a_, kernels_) : arguments(context);
    if (layer.mixer.kind != MixerKind::attention && layer.mixer.kind != MixerKind::mla) given.mask.reset();
    if (kernels_.compile) return run_compiled_layer(g_, a_, layer, leaves, kernels_, o_.recompute, x);
    const auto body = [this, &layer, &leaves, given](const Tensor& in) {
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

  /// A layer whose own input is an argument beside the hidden states, which gets a gradient. The keys that a layer stores lead
  /// back to its detached input, which so stays with its gradient as long as their name does.
  Tensor with_layer_input(const Layer& layer, const LayerLeaves& leaves, const LayerContext& given, const Tensor& x) {
    const auto own = std::make_shared<LayerContext>(given);
    arguments_.back().context.layer_input.reset();  // no keyword
    const auto body = [this, &layer, &leaves, own](const Tensor& in) {
      g_.keeps_checkpoints = kernels_.keeps_checkpoints || layer.mixer.stores_kv;
      return run_layer(g_, a_, layer, leaves, kernels_, *own, in);
    };
    return g_.checkpoint_reentrant(x, body, {}, own->layer_input ? &own->layer_input : nullptr);
  }

  /// Transformer.forward of torchtitan, GPT.forward of LitGPT, TransformerDecoder.forward of torchtune, Archon's models: one
  /// name, rebound.
  Tensor titan_decoder() {
    Tensor hidden = embed();  // between the halves of a layer tensors are local
    std::size_t number = 0;
    for (std::size_t r = 0; r < a_.runs.size(); ++r) {
      for (int u = 0; u < units(r); ++u) {
        enter(StationPlace::layers, static_cast<int>(r), u);
        g_.prefix = "layer.";
        hidden = run_one(r, number++, {}, hidden);
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

  /// LlamaModel.forward: inputs_embeds stays a local variable to the end.
  Tensor decoder() {
    if (kernels_.kernels == Kernels::torchtitan || kernels_.kernels == Kernels::archon || is_litgpt(kernels_.kernels) ||
        is_torchtune(kernels_.kernels))
      return titan_decoder();
    const DistributedGuard dtensors(g_, kernels_.tensor > 1);
    Tensor inputs_embeds = embed();
    VisionNames images;  // of the model around the language model, which returns behind it
    if (tower_) tower_->merge(inputs_embeds, images);
    enter(StationPlace::preamble);
    if (project_in_ >= 0) {
      Tensor wide = linear(g_, inputs_embeds, project_in_, -1, T, {B, all_, Dim(a_.hidden)}, "embedding.projected");
      inputs_embeds = std::move(wide);
    }
    Tensor layer_inputs;
    if (a_.per_layer_vocab > 0) layer_inputs = make_layer_inputs(g_, code_, a_, layer_inputs_, input_ids_, inputs_embeds);
    Tensor hidden = inputs_embeds, position_embeds;
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
    Preamble shared = preamble(inputs_embeds.dtype);
    shared.full.returned = &returned;
    if (code_.norms_values) shared.full.shared = shared.windowed.shared = std::make_shared<SharedKv>();
    if (code_.own == OwnCode::mpt) shared.full.alibi = shared.windowed.alibi = std::move(alibi);
    std::size_t number = 0;
    Tensor chosen, chosen_next;  // `hidden_states, topk_indices = decoder_layer(...)`
    if (code_.returns_chosen) shared.full.chosen_out = &chosen_next;
    Tensor layer_outputs;  // Qwen3-VL's model has a name for what a layer returned, beside what features are added to
    for (std::size_t r = 0; r < a_.runs.size(); ++r) {
      for (int u = 0; u < units(r); ++u) {
        const Tensor cast = cast_hidden(hidden);
        enter(StationPlace::layers, static_cast<int>(r), u);
        g_.prefix = "layer.";
        const bool windowed = a_.runs[r].layer.mixer.span != AttentionSpan::full;
        shared.full.chosen = chosen;  // prev_topk_indices
        LayerContext& given = windowed ? shared.windowed : shared.full;
        if (layer_inputs) given.layer_input = input_of_layer(g_, layer_inputs);
        hidden = run_one(r, number++, given, cast ? cast : hidden);
        given.layer_input.reset();
        shared.full.chosen.reset();
        chosen = std::exchange(chosen_next, {});
        if (deepstack_layers_ > 0) layer_outputs = hidden;
      }
      if (r < deepstack_layers_) add_features(hidden, images, r);
    }
    g_.prefix.clear();
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

  /// Heads that take hidden states: inside of the model's forward pass, whose names and casts live until it returns, and behind.
  Tensor hidden_loss_inside(const HeadOptions& head, const std::function<void(int)>& scope) {
    Tensor hidden = decoder();
    enter(StationPlace::loss);
    Tensor loss = run_hidden_head(g_, hidden, head, scope);
    g_.leave_autocast();
    enter(StationPlace::finish);
    positions_.reset();
    return loss;
  }
  Tensor hidden_loss(const HeadOptions& head, const std::function<void(int)>& scope) {
    Tensor hidden = decoder();
    if (!stash_) g_.hooks = nullptr;
    positions_.reset();
    g_.leave_autocast();
    const bool autocast = std::exchange(g_.autocast, false);  // only the model's own forward pass ran under it
    enter(StationPlace::head);
    Tensor loss = run_hidden_head(g_, std::move(hidden), head, scope);
    g_.autocast = autocast;
    return loss;
  }

  Tensor logits(const Tensor& hidden) {
    Tensor kept = o_.slice_hidden ? slice(g_, hidden, {B, K, Dim(width_)}) : hidden;
    // FSDP2 casts what its unit gets in front of the gather
    if (code_.logits_in_fp32) kept = to(g_, std::move(kept), g_.leaves[static_cast<std::size_t>(head_)].dtype, "hidden_cast");
    enter(StationPlace::head);
    {
      const DistributedGuard dtensors(g_, kernels_.tensor > 1);
      kept = gather_tokens(g_, kept, kernels_, "hidden_gathered");
    }
    // rows of several sequences are no longer one block: the matrix product needs a copy
    if (o_.slice_hidden && o_.kernels.several_sequences) kept = copy(g_, std::move(kept), {B, K, Dim(width_)}, "hidden_kept");
    const Dim width = o_.critic ? 1 : a_.vocab;
    SavedHooks* outside = g_.hooks;
    if (stash_spares_head(o_)) g_.hooks = nullptr;
    Tensor out = linear(g_, kept, head_, head_bias_, TK, {B, K, width}, o_.critic ? "values" : "logits", Category::logits);
    g_.hooks = outside;
    if (code_.scales_logits && !o_.critic) {
      Tensor scaled = scale(g_, out, "logits.scaled", Category::logits);
      out = std::move(scaled);
    }
    if (a_.final_softcap && !o_.critic) soft_cap(out);
    if (code_.logits_in_fp32) out = to(g_, std::move(out), DType::fp32, "logits.fp32");
    return out;
  }

  /// DDP's _DDPSink: a clone of every tensor that the model returns takes its place. All are made before the first original goes,
  /// which stays only where the graph saved it. Gradients pass through as they are.
  void clone_outputs(Tensor& loss, Tensor& output) {
    Tensor of_loss = loss ? copy(g_, loss, loss.shape, "loss.clone") : Tensor();
    Tensor of_output = copy(g_, output, output.shape, "logits.clone");
    loss = std::move(of_loss);
    output = std::move(of_output);
  }

  /// tanh(logits / cap) * cap, each step bound to the same name.
  void soft_cap(Tensor& logits) {
    Tensor next = scale(g_, logits, "logits.divided", Category::logits);
    logits = std::move(next);
    next = tanh(g_, logits, "logits.tanh");
    logits = std::move(next);
    next = scale(g_, logits, "logits.capped", Category::logits);
    logits = std::move(next);
  }

  Tensor forward() {
    enter(StationPlace::inputs);
    // Archon's Ulysses slices are views of whole tensors (ulysses_slice_inputs), and positions come with the batch
    const bool archon = kernels_.kernels == Kernels::archon;
    const Dim given = archon ? Dim(kernels_.ulysses) * all_ : all_;
    input_ids_ = g_.make("input_ids", {B, given}, DType::int64, Category::inputs);
    labels_ = g_.make("labels", {B, given}, DType::int64, Category::inputs);
    if (kernels_.padding_mask) padding_ = g_.make("attention_mask", {B, given}, DType::int64, Category::inputs);
    if (archon) packed_positions_ = g_.make("position_ids", {B, given}, DType::int64, Category::inputs);
    if (tower_) tower_->enter_inputs();
    const HeadOptions head{.head = o_.critic && o_.head != LossHead::reward_pairs ? LossHead::value : o_.head,
                           .keep_outputs = o_.keep_outputs,
                           .vocab = a_.vocab,
                           .chunks = o_.chunks,
                           .several_sequences = kernels_.several_sequences,
                           .split_vocabulary = kernels_.tensor > 1,
                           .slice_hidden = o_.slice_hidden,
                           .weight = head_,
                           .liger = kernels_.liger.code,
                           .copies_shifted = kernels_.release.copies_shifted,
                           .labels = labels_,
                           .metrics = computes_metrics(o_.head)};
    const auto scope = [this](int chunk) {
      if (chunk >= 0)
        enter(StationPlace::chunks, -1, chunk);
      else
        enter(StationPlace::finish);
    };
    if (head.head == LossHead::litgpt) {
      before_.there = o_.training && o_.keep_outputs;
      Tensor hidden = decoder();
      enter(StationPlace::head);
      Tensor loss = litgpt_loss(g_, std::move(hidden),
                                {head_, head_bias_, kernels_.adapters.rank > 0, a_, head, before_, o_.kernels.scan_tokens},
                                kept_outputs_, [this] { enter(StationPlace::loss); });
      enter(StationPlace::finish);
      return loss;
    }
    if (is_torchtune(head.head)) {
      Tensor hidden = decoder();
      g_.hooks = nullptr;  // its output layer is called without them, the loss behind the model
      enter(StationPlace::head);
      Tensor loss = torchtune_loss(g_, std::move(hidden), head_, head);
      enter(StationPlace::finish);
      return loss;
    }
    if (takes_hidden(head.head)) return inside_model(head.head) ? hidden_loss_inside(head, scope) : hidden_loss(head, scope);
    // torchtitan up to June 2024: the model's output is fp32 and keeps its name until the next one is there
    const bool named = kernels_.kernels == Kernels::torchtitan && o_.keep_outputs;
    Tensor output, loss, output_before;
    if (named) output_before = g_.make("logits.before", {B, all_, Dim(a_.vocab)}, DType::fp32, Category::logits);
    {
      Tensor hidden = decoder();
      output = logits(hidden);
      if (kernels_.release.widens_logits || named) {
        Tensor wide = to(g_, output, DType::fp32, "logits_fp32");
        output = std::move(wide);
      }
      if (inside_model(head.head)) {
        enter(StationPlace::loss);
        loss = run_head(g_, output, head, scope);
        g_.leave_autocast();
        enter(StationPlace::finish);
      }
      positions_.reset();
      if (!stash_) g_.hooks = nullptr;
    }
    if (takes_sequences(head.head) && g_.autocast) {
      // accelerate/utils/operations.py, 1.14: convert_outputs_to_fp32 wraps the forward pass under mixed precision
      Tensor wide = to(g_, output, DType::fp32, "logits_fp32");
      output = std::move(wide);
    }
    if (o_.clones_outputs) clone_outputs(loss, output);
    output_before.reset();
    if (o_.keep_outputs || keeps_logits(head.head)) kept_outputs_ = output;
    if (inside_model(head.head)) return loss;
    enter(StationPlace::loss);
    if (holds_logits(head.head)) {
      // the step's local variable `output` (verl), `pred` (torchtitan) holds the logits until it returns
      loss = run_head(g_, output, head, scope);
      enter(StationPlace::finish);
      if (is_preference(head.head)) {
        if (head.head == LossHead::trl_kto && head.metrics) logged_ = kto_copies(g_, output, a_.vocab);
        step_names_ = std::move(output);
        return loss;  // autocast is left with the function
      }
      output.reset();
    } else {
      loss = run_head(g_, std::move(output), head, scope);
      enter(StationPlace::finish);
    }
    g_.leave_autocast();
    return loss;
  }

  /// verl's step holds what the model gave it, unless that was made fp32; torchtitan's does in any case.
  static bool holds_logits(LossHead h) {
    if (h == LossHead::cross_entropy || h == LossHead::cross_entropy_chunked || h == LossHead::cross_entropy_compiled ||
        takes_sequences(h))
      return true;
    const auto steps = verl_steps(h);
    return steps && !steps->fp32;
  }
  /// TRL's entropy of the policy's logits: DPO and KTO compute it behind the reference's pass, GRPO where it trains.
  bool computes_metrics(LossHead h) const {
    if (h == LossHead::trl_grpo) return o_.training;
    return (h == LossHead::trl_dpo || h == LossHead::trl_kto) && (o_.reference || (o_.training && !o_.refers));
  }
  /// AReaL's `outputs` and `logits` stay referenced through the backward pass.
  static bool keeps_logits(LossHead h) { return h == LossHead::areal_compiled || h == LossHead::areal_eager; }

  Eager& g_;
  const SpacedRuns spaced_;
  const Architecture& a_ = spaced_.architecture;  ///< as this rank holds it
  const PassOptions& o_;
  const FamilyCode& code_;
  KernelOptions kernels_;    ///< of o_, and whether dropout acts
  std::int64_t vocabulary_;  ///< whole
  ModelRun out_;
  const std::unique_ptr<VisionTower> tower_ = make_tower(g_, a_, o_, out_.stations);
  const std::size_t deepstack_layers_ = tower_ ? static_cast<std::size_t>(a_.tower.deepstack) : 0;
  const std::int64_t width_ = a_.embedding_width > 0 ? a_.embedding_width : a_.hidden;  ///< of the embedding and the head
  int project_in_ = -1, project_out_ = -1;
  int embedding_ = -1, position_table_ = -1, head_ = -1, head_bias_ = -1;
  const Dim all_{Dim(kernels_.tensor) * S};  ///< tokens of a whole sequence
  NormLeaf norm_, embedding_norm_;
  std::vector<LayerLeaves> layers_;
  LayerInputLeaves layer_inputs_;
  CopyLeaves copies_;
  LitgptBefore before_;
  std::vector<Tensor> logged_;  ///< names of the step like step_names_
  std::optional<ActivationOffload> offload_;
  std::optional<StashOffload> stash_;
  Tensor input_ids_, labels_, padding_, packed_positions_, positions_, kept_outputs_, input_leaf_, input_gradient_, step_names_;
  Tensor bare_embedding_;  ///< `inputs_embeds`, beside what it is multiplied to: a name of the model
  /// Keyword arguments of a layer: a reentrant checkpoint's node has them as attributes, which live as long as the graph does.
  struct Arguments {
    LayerContext context;
    Tensor positions;
  };
  std::vector<Arguments> arguments_;  ///< of every layer: those of windowed and full ones differ
};

}  // namespace

namespace {

/// What depends on the pass as a whole.
std::string unsupported_pass(const Architecture& a, const PassOptions& o) {
  const bool titan = o.kernels.kernels == Kernels::torchtitan;
  const bool titans = o.head == LossHead::cross_entropy || o.head == LossHead::cross_entropy_chunked ||
                      o.head == LossHead::cross_entropy_compiled;
  if (titan && (o.critic || o.slice_hidden || (o.keep_outputs && o.head != LossHead::cross_entropy) || !titans))
    return "this head of torchtitan's models is not supported yet";
  if (is_litgpt(o.kernels.kernels) != (o.head == LossHead::litgpt) ||
      (o.head == LossHead::litgpt && (o.critic || o.slice_hidden)))
    return "LitGPT's models and its head without each other are not supported yet";
  if (is_torchtune(o.kernels.kernels) != is_torchtune(o.head) ||
      (is_torchtune(o.head) && (o.critic || o.slice_hidden || o.keep_outputs)))
    return "torchtune's models and its losses without each other are not supported yet";
  if (std::string why = unsupported_offload(a, o); !why.empty()) return why;
  if (o.recompute_every > 1 && o.recompute == Recompute::full && is_litgpt(o.kernels.kernels))
    return "LitGPT checkpoints every block";
  const bool archon = o.kernels.kernels == Kernels::archon;
  if (archon && o.reentrant) return "Archon's checkpoints are not reentrant";
  if (o.recompute == Recompute::selective && ((!titan && !archon) || o.reentrant))
    return "selective recomputation of models other than torchtitan's and Archon's is not supported yet";
  if (o.kernels.compile) {
    if (std::string why = unsupported_compiled(a, o.kernels, o.recompute); !why.empty()) return why;
    if (!o.training) return "a forward-only pass under torch.compile is not supported yet";
    if (o.reentrant) return "a reentrant checkpoint under torch.compile is not supported yet";
  }
  if (o.kernels.tensor == 1) return {};
  if (o.critic) return "tensor parallelism of a value model is not supported yet";
  if (a.tied && !archon) return "tensor parallelism of a model with tied embeddings is not supported yet";
  if (o.slice_hidden || o.keep_outputs) return "tensor parallelism with logits_to_keep or keep_outputs is not supported yet";
  return splits_vocabulary(o.head) ? std::string() : "this head under tensor parallelism is not supported yet";
}

}  // namespace

ModelRun run_model(Eager& g, const Architecture& a, const PassOptions& options) {
  std::string why = unsupported(a, options.kernels);
  if (why.empty()) why = unsupported_pass(a, options);
  if (why.empty()) why = unsupported_with_images(options);
  if (!why.empty()) throw InputError(Problem{{}, a.name, "a model that the kernel sets describe", "", why});
  return Runner(g, a, options).run();
}

}  // namespace oomplan
