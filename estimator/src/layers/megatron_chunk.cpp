// One chunk of Megatron-core's GPTModel in the simulator: its stations, and how full recomputation groups its layers.
#include <algorithm>

#include <oomplan/units/errors.hpp>

#include "layers/kept_tapes.hpp"
#include "layers/megatron.hpp"
#include "layers/megatron_vision.hpp"
#include "layers/model.hpp"
#include "layers/ops.hpp"
#include "layers/tape_builder.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::S;

class ChunkRunner {
 public:
  ChunkRunner(Eager& g, const Architecture& a, const ChunkOptions& o) : g_(g), a_(a), o_(o), wide_(o) {
    wide_.te.fp8 = Fp8Recipe::none;
    if (!a.tower.kind.empty() && !holds_tower_alone(a))
      tower_ = std::make_unique<MegatronTower>(g, a, o, [this](StationPlace p, int run, int unit) { enter(p, run, unit); });
  }

  ModelRun run() {
    plan_stations();
    g_.grad_enabled = !o_.forward_only && !o_.settings.mtp_alone;  // of frozen layers nothing is kept
    Tensor out = forward();
    if (o_.forward_only) {
      enter(StationPlace::finish);
      inputs_.clear();
      if (tower_) tower_->leave_forward();
      mask_.reset();
      embedding_ = output_ = {};
      out.reset();
      return std::move(out_);
    }
    const std::shared_ptr<Node> node = out.grad_fn;
    const Shape shape = out.shape;
    enter(StationPlace::finish);
    inputs_.clear();
    if (tower_) tower_->leave_forward();
    // checkpoints keep it, and so does what masks the scores in place
    const bool masks = scores_itself(o_) && !o_.softmax_kernel;
    if (o_.recompute != Recompute::full && !recomputes(o_, "core_attn") && !masks) mask_.reset();
    // a stage's output goes once it has been sent; its node stays
    if (!o_.last && o_.settings.deallocate_outputs) out.reset();
    backward(node, shape);
    g_.in_backward = true;
    enter(StationPlace::inputs);
    out.reset();
    mask_.reset();
    output_gradient_.reset();
    input_gradient_.reset();
    predicted_gradient_.reset();
    embedding_ = output_ = {};
    return std::move(out_);
  }

 private:
  void single(StationPlace p) {
    Station s;
    s.place = p;
    out_.stations.push_back(s);
  }
  void plan_stations() {
    single(StationPlace::inputs);
    const bool embeds_first = embeds_before_tower(a_, o_);
    if (sees_images() && !embeds_first) tower_->plan(out_.stations);
    single(StationPlace::embedding);
    if (sees_images() && embeds_first) tower_->plan(out_.stations);
    for (auto& group : layer_groups(o_)) {
      if (runs_.empty() || runs_.back().first != group) {
        Station s;
        s.place = StationPlace::layers;
        s.run = static_cast<int>(runs_.size());
        s.count = 0;
        out_.stations.push_back(s);
        runs_.emplace_back(std::move(group), out_.stations.size() - 1);
      }
      Station& s = out_.stations[runs_.back().second];
      ++s.count;
      s.simulated = static_cast<int>(std::min<std::int64_t>(kSimulatedUnits, s.count));
    }
    single(StationPlace::norm);
    single(StationPlace::head);
    if (const int chunks = chunks_of_loss(); o_.last && chunks > 0) {
      Station s;
      s.place = StationPlace::chunks;
      s.count = 0;  // the stage knows
      s.simulated = chunks;
      out_.stations.push_back(s);
    }
    single(StationPlace::finish);
  }
  bool sees_images() const { return tower_ != nullptr && o_.first && o_.vision.images > 0; }
  int chunks_of_loss() const {
    if (o_.settings.mtp_alone) return 0;
    if (o_.actor) return o_.actor->checkpoint ? 0 : o_.actor->chunks;  // what a checkpoint runs again is one station
    const bool whole = o_.areal.value || o_.areal.head_chunk > 0 || (o_.areal.in_place && !o_.forward_only);
    return o_.areal.on && !whole ? o_.areal.chunks : 0;
  }
  void enter(StationPlace place, int run = -1, int unit = 0) {
    for (std::size_t i = 0; i < out_.stations.size(); ++i)
      if (out_.stations[i].place == place && out_.stations[i].run == run)
        g_.scope = static_cast<int>(i) * kUnitsPerStation + unit;
  }

  /// A gradient that somebody else takes when it is there.
  Tensor needing_gradient(Tensor x, bool keeps) {
    auto node = std::make_shared<Node>();
    node->name = "AccumulateGrad";
    node->sequence = kAccumulates;
    node->scope = g_.scope;
    node->apply = [this, keeps](Gradients in) {
      if (keeps) input_gradient_ = std::move(in[0]);
      return Gradients{};
    };
    x.grad_fn = std::move(node);
    return x;
  }

  /// verl's blocks of multi-token prediction read the decoder's states as a leaf, which keeps its gradient as long as the graph.
  Tensor apart_from(const Tensor& x) {
    Tensor out = needing_gradient(x.alias(x.shape), false);
    out.grad_fn->apply = [this](Gradients in) {
      predicted_gradient_ = std::move(in[0]);
      return Gradients{};
    };
    return out;
  }

  /// LanguageModelEmbedding.forward on a split table. `images`: of which features take the place of tokens.
  Tensor embed(const Tensor& ids, bool images) {
    const TeOptions& te = o_.te;
    const bool split = te.tensor > 1, sequence = te.sequence_parallel && split, positions = a_.position_rows > 0;
    // beside a tower every rank of a context embeds all tokens, but those that a block looks ahead to
    const Dim tokens = images ? Dim(te.context) * te.whole() : te.whole();
    Shape whole{tokens, B, Dim(a_.hidden)};
    const Shape local{S, B, Dim(a_.hidden)};
    const Tensor weight = o_.adapters || o_.settings.mtp_alone ? g_.scalar(DType::bf16)
                          : embedding_.weight                  ? embedding_.weight
                                                               : needing_gradient(g_.scalar(DType::bf16), false);
    Tensor masked, mask;
    if (split) {
      mask = g_.make("embedding.mask", {B, tokens}, DType::boolean);
      masked = g_.make("embedding.input", {B, tokens}, DType::int64);
    }
    Tensor x = g_.make("embedding", whole, DType::bf16);
    Saved index = g_.will_record({&weight}) ? g_.save(split ? masked : ids) : Saved();
    const std::int64_t rows = o_.padded_vocab / te.tensor, hidden = a_.hidden;
    g_.record(x, "EmbeddingBackward0", {&weight}, [this, index, rows, hidden, tokens](Gradients in) {
      if (in[0].storage() < 0) return Gradients{};
      const Shape table{Dim(rows), Dim(hidden)};
      return Gradients{embedding_gradient(g_, "embedding.weight_gradient", table, DType::bf16, {B, tokens}, o_.embedding_sort)};
    });
    if (split) {  // rows of other ranks are set to zero: their gradient too, in a copy
      Tensor zeroed = x.alias(x.shape);
      Saved saved_mask = g_.will_record({&x}) ? g_.save(mask) : Saved();
      g_.record(zeroed, "IndexPutBackward0", {&x}, [this, saved_mask](Gradients in) {
        (void)saved_mask.get();
        return Gradients{g_.make("embedding_backward.zeroed", in[0].shape, DType::bf16, Category::temporaries)};
      });
      x = std::move(zeroed);
    }
    if (positions) {
      Tensor rows_of_positions = g_.make("position_embedding", whole, DType::bf16);
      Tensor sum = g_.make("embedding.with_positions", whole, DType::bf16);
      g_.record(sum, "AddBackward0", {&x}, [](Gradients in) { return in; });
      x = std::move(sum);
    }
    if (te.several_sequences) x = te_contiguous(g_, x, "embedding.by_token");
    if (images) {
      Tensor joined = tower_->joined(x);
      x = std::move(joined);
      whole = x.shape;
    }
    if (sequence) {
      Tensor scattered;
      const bool scatters_last = tower_ != nullptr || holds_tower_alone(a_);
      if (positions || scatters_last) {  // a view of this rank's rows
        scattered = x.alias(local);
      } else {
        scattered = g_.make("embedding.scattered", local, DType::bf16);
      }
      g_.record(scattered, "ScatterToSequenceParallelRegion", {&x}, [this, whole](Gradients) {
        return Gradients{g_.make("embedding_backward.gathered", whole, DType::bf16, Category::temporaries)};
      });
      const bool lies_together = scatters_last && !(te.several_sequences && embeds_before_tower(a_, o_));
      x = lies_together ? scattered : te_contiguous(g_, scattered, "embedding.cloned");
    }
    if (a_.hidden_dropout > 0) x = dropout(g_, x, "embedding.dropped");
    return o_.gemma ? scale(g_, x, "embedding.scaled") : x;
  }

  /// With several nodes that make gradients of one matrix these wait for each other: tied embeddings on one stage, and
  /// multi-token prediction, which embeds and predicts once more a block.
  void share_weights() {
    if (o_.adapters || o_.settings.mtp_alone) return;
    const bool tied = a_.tied && ((o_.first && o_.last) || o_.mtp > 0);
    if (!tied && o_.mtp == 0) return;
    const Shape shape{Dim(o_.padded_vocab / o_.te.tensor), Dim(a_.hidden)};
    const auto shared = [&] {
      SharedWeight out;
      out.weight = needing_gradient(g_.scalar(DType::bf16), false);
      if (o_.te.fused_gradients) out.placeholder = g_.make("placeholder_gradient", {Dim(0)}, DType::bf16).alias(shape);
      return out;
    };
    embedding_ = shared();
    output_ = tied ? embedding_ : shared();
  }

  /// The tokens and positions that a block of multi-token prediction looks ahead to.
  Tensor embed_next() {
    const Shape rows{B, o_.te.whole()};
    Tensor ids = g_.make("mtp.tokens", rows, DType::int64, Category::inputs);
    next_ids_ = {ids, g_.make("mtp.position_ids", rows, DType::int64, Category::inputs)};
    return embed(ids, false);
  }

  /// `features`: of the group's first layer and those behind it.
  Tensor with_features(const std::vector<Tensor>& features, std::size_t i, const Tensor& hidden) {
    return i < features.size() ? tower_->with_features(hidden, features[i]) : hidden;
  }

  Tensor run_group(const LayerGroup& group, const Tensor& x) {
    const bool adds_inside = !group.checkpoint || (tower_ && tower_->adds_in_checkpoint());
    // a checkpoint that runs again has its own
    const std::vector<Tensor> features = group.featured >= 0 ? tower_->features_of(group) : std::vector<Tensor>{};
    const auto body = [this, &group, inside = adds_inside ? features : std::vector<Tensor>{}](const Tensor& in) {
      Tensor hidden = in;
      for (std::size_t i = 0; i < group.layers.size(); ++i) {
        const int run = group.layers[i];
        hidden = run_megatron_layer(g_, a_, a_.runs[run_of(run)].layer, stays_wide(run) ? wide_ : o_, hidden, mask_);
        hidden = with_features(inside, i, hidden);
      }
      return hidden;
    };
    if (!group.checkpoint) return body(x);
    const Tensor out = g_.checkpoint_reentrant(x, body, tower_ ? tower_->arguments() : std::vector<Tensor>{});
    return adds_inside ? out : with_features(features, 0, out);
  }

  Tensor forward() {
    enter(StationPlace::inputs);
    const Shape rows{B, o_.te.whole()};
    if (o_.first || o_.last) {  // a stage between them reads no batch
      // padded ones beside a tower come whole
      const Shape tokens = tower_ && o_.packed == 0 ? Shape{B, Dim(o_.te.context) * o_.te.whole()} : rows;
      inputs_.push_back(g_.make("tokens", tokens, DType::int64, Category::inputs));
      // None for both (slime/backends/megatron_utils/model.py: forward_step, 0.2 to 624b824a)
      if (!o_.actor || o_.actor->kind == ActorLossKind::verl)
        for (const char* name : {"labels", "position_ids"})
          inputs_.push_back(g_.make(name, rows, DType::int64, Category::inputs));
      inputs_.push_back(g_.make("loss_mask", rows, DType::fp32, Category::inputs));
      if (const std::int64_t k = o_.actor ? o_.actor->topk : 0; k > 0)
        for (const auto& [name, dtype] : {std::pair{"teacher_log_probs", DType::fp32}, std::pair{"teacher_ids", DType::int32}})
          inputs_.push_back(g_.make(name, {B, o_.te.whole(), Dim(k)}, dtype, Category::inputs));
      // labels and masks as nested tensors and packed, positions (verl/models/mcore/model_forward.py, 0.10:
      // gptmodel_forward_model_engine)
      if (o_.patched && o_.mtp > 0)  // rolled (GPTModel._postprocess of slime's patch)
        for (const char* name : {"mtp.labels", "mtp.loss_mask"})
          inputs_.push_back(g_.make(name, rows, DType::int64, Category::inputs));
      if (o_.actor && o_.mtp > 0 && !o_.patched)
        for (const char* name : {"mtp.nested_labels", "mtp.labels", "mtp.response_mask", "mtp.nested_loss_mask", "mtp.loss_mask",
                                 "mtp.packed_positions"})
          inputs_.push_back(g_.make(name, rows, DType::int64, Category::inputs));
      if (o_.settings.attention_mask)
        mask_ =
            g_.make("attention_mask", {B, o_.te.whole(), Dim(o_.te.context) * o_.te.whole()}, DType::boolean, Category::inputs);
    }
    if (tower_ && o_.vision.images > 0) tower_->enter_inputs();
    share_weights();
    if (sees_images() && !embeds_before_tower(a_, o_)) tower_->run();
    enter(StationPlace::embedding);
    Tensor hidden;
    if (o_.first) {
      hidden = embed(inputs_.front(), tower_ != nullptr);
      // a checkpoint needs an input with a gradient (Megatron-Bridge, peft/recompute.py: maybe_enable_recompute_inputs_grad)
      if (o_.adapters.rank > 0 && o_.recompute == Recompute::full && !hidden.grad_fn)
        hidden = needing_gradient(std::move(hidden), true);
    } else {
      hidden = g_.scalar(DType::bf16);
      hidden.shape = {S, B, Dim(a_.hidden)};
      hidden = needing_gradient(std::move(hidden), true);
    }
    if (tower_) tower_->make_tables();
    Tensor decoder_input = hidden;
    for (const auto& [group, station] : runs_) {
      for (int u = 0; u < out_.stations[station].simulated; ++u) {
        enter(StationPlace::layers, out_.stations[station].run, u);
        g_.prefix = "layer.";
        Tensor next = run_group(group, hidden);
        hidden = std::move(next);
      }
    }
    g_.prefix.clear();
    if (!o_.last) return hidden;
    enter(StationPlace::norm);
    Tensor normed = te_norm(g_, hidden, a_.final_norm, "final_layernorm");
    hidden = std::move(normed);
    if (o_.mtp > 0) {
      g_.grad_enabled = !o_.forward_only;
      const auto leaf = [this](const Tensor& x) { return apart_from(x); };
      Tensor all = run_megatron_mtp(
          g_, a_, o_, hidden, [this] { return embed_next(); }, leaf, tower_ ? tower_->arguments().front() : Tensor());
      next_ids_.clear();
      hidden = std::move(all);
    }
    enter(StationPlace::head);
    if (o_.actor && o_.mtp > 0) {
      Tensor own = run_megatron_mtp_losses(g_, a_, o_, hidden, output_);
      hidden = std::move(own);
      if (o_.settings.mtp_alone) return carried_alone(std::move(hidden), decoder_input);
    }
    const auto chunk = [this](int number) {
      if (chunks_of_loss() == 0) return;
      if (number >= 0)
        enter(StationPlace::chunks, -1, number);
      else
        enter(StationPlace::finish);
    };
    if (o_.areal.on) return run_areal_megatron_head(g_, a_, o_, hidden, output_, chunk);
    if (o_.actor && o_.actor->fused) return run_verl_fused_megatron_head(g_, a_, o_, hidden, inputs_[1], output_);
    if (o_.actor && o_.actor->head_chunks > 0) {
      decoder_input.reset();
      return run_megatron_head_in_loss(g_, a_, o_, std::move(hidden), output_);
    }
    if (o_.actor) {
      Tensor narrow = megatron_output_layer(g_, a_, o_, hidden, output_);
      for (Tensor* name : {&hidden, &decoder_input}) name->reset();  // GPTModel.forward has returned
      if (tower_) tower_->leave_model();
      if (o_.te.several_sequences) narrow = te_contiguous(g_, narrow, "logits.by_sequence");  // transpose(0, 1).contiguous()
      Tensor logits = to(g_, std::move(narrow), DType::fp32, "logits.fp32");
      return actor_loss(g_, *o_.actor, std::move(logits), chunk);
    }
    Tensor loss = o_.mtp > 0 ? run_megatron_heads(g_, a_, o_, hidden, output_) : run_megatron_head(g_, a_, o_, hidden, output_);
    return loss;
  }

  /// Nothing times the states that carry the blocks' losses (relax/backends/megatron/loss.py: mtp_only_loss_function): the output
  /// layer runs for the blocks alone, and the gradient is one number that is spread out.
  Tensor carried_alone(Tensor hidden, Tensor& decoder_input) {
    Tensor loss = g_.make("loss", {}, DType::fp32);
    g_.record(loss, "SumBackward0", {&hidden}, [this](const Gradients&) { return Gradients{g_.scalar(DType::bf16)}; });
    for (Tensor* name : {&hidden, &decoder_input}) name->reset();
    if (tower_) tower_->leave_model();
    return loss;
  }

  /// Begins in the last station. The gradient that the next chunk has sent is a name of the schedule until the next one comes.
  void backward(const std::shared_ptr<Node>& node, const Shape& shape) {
    Tensor root = g_.scalar(DType::bf16);
    root.grad_fn = node;
    root.shape = shape;
    g_.in_backward = true;
    Tensor gradient = o_.last ? g_.make("loss.gradient", shape, DType::fp32, Category::temporaries)
                              : g_.make("output_gradient", shape, DType::bf16, Category::temporaries);
    if (!o_.last) output_gradient_ = gradient;
    g_.in_backward = false;
    g_.backward(root, std::move(gradient));
  }

  Eager& g_;
  const Architecture& a_;
  const ChunkOptions& o_;
  ChunkOptions wide_;  ///< of layers with products in 16 bits
  ModelRun out_;
  std::vector<std::pair<LayerGroup, std::size_t>> runs_;  ///< with their stations
  std::vector<Tensor> inputs_, next_ids_;
  Tensor mask_;
  SharedWeight embedding_, output_;
  Tensor input_gradient_, output_gradient_, predicted_gradient_;
  std::unique_ptr<MegatronTower> tower_;
};

void refuse_unsupported(const Architecture& a, const ChunkOptions& o) {
  const std::string why = unsupported_chunk(a, o);
  if (!why.empty()) throw InputError(Problem{{}, a.name, "a model and settings that Megatron's layers describe", "", why});
}

}  // namespace

// TransformerBlock._checkpointed_forward (megatron/core/transformer/transformer_block.py, 0.16.1).
std::vector<LayerGroup> layer_groups(const ChunkOptions& o) {
  std::vector<LayerGroup> out;
  const bool full = o.recompute == Recompute::full;
  const auto n = static_cast<std::size_t>(o.settings.recompute_layers);
  const bool uniform = full && o.settings.recompute_method == RecomputeMethod::uniform;
  for (std::size_t i = 0; i < o.layers.size(); ++i) {
    if (uniform && i % n != 0) {
      out.back().layers.push_back(o.layers[i]);
      continue;
    }
    const auto number = static_cast<std::int64_t>(i);
    out.push_back({{o.layers[i]}, full && (uniform || i < n), number < o.featured ? number : -1});
  }
  return out;
}

std::vector<int> all_layers(const Architecture& a, const ChunkOptions& o) {
  std::vector<int> out = o.layers;
  out.insert(out.end(), static_cast<std::size_t>(o.mtp), static_cast<int>(a.runs.size()) - 1);
  return out;
}

bool tower_of_transformers(const Architecture& a, const ChunkOptions& o) {
  return (o.settings.maker == ModelMaker::mbridge && a.model_type.starts_with("qwen3_5")) || embeds_before_tower(a, o);
}

bool holds_tower_alone(const Architecture& a) { return a.tower.kind == "moonvit"; }

bool embeds_before_tower(const Architecture& a, const ChunkOptions& o) {
  return o.settings.maker == ModelMaker::megatron_bridge && a.tower.kind == "qwen2_5_vl";
}

bool scores_itself(const ChunkOptions& o) { return is_local(o) || o.te.attention == TeAttention::local; }

bool is_local(const ChunkOptions& o) { return o.settings.impl == TransformerImpl::local; }

bool recomputes(const ChunkOptions& o, std::string_view module) {
  const auto& names = o.settings.recompute_modules;
  // TransformerConfig.__post_init__: nothing named is core_attn
  if (names.empty()) return o.recompute == Recompute::selective && module == "core_attn";
  return o.recompute == Recompute::selective && std::find(names.begin(), names.end(), module) != names.end();
}

std::shared_ptr<const Tape> make_chunk_tape(const Architecture& a, const ChunkOptions& o) {
  // Stages in the middle of a pipeline are alike, and most changes of a job leave a stage's pass as it was.
  static KeptTapes<ChunkOptions> tapes(32);
  return tapes.get(a, o, [&]() -> std::shared_ptr<const Tape> {
    refuse_unsupported(a, o);
    Eager g;
    const ModelRun run = ChunkRunner(g, a, o).run();
    g.uses.clear();  // of a tower's parameters, which nothing gathers
    return build_tape(g, run);
  });
}

std::vector<TapeSite> saved_of_chunk_layer(const Architecture& a, const ChunkOptions& o, std::size_t layer) {
  refuse_unsupported(a, o);
  Eager g;
  ChunkOptions one = o;
  one.first = false;  // what comes in belongs to the layer
  one.mtp = 0;
  one.layers = {o.layers[layer], o.layers[layer], o.layers[layer]};
  const ModelRun run = ChunkRunner(g, a, one).run();
  std::vector<TapeSite> out;
  constexpr int kMiddle = 2 * kUnitsPerStation + 1;
  for (const auto& s : g.storages)
    if (s.scope == kMiddle && !s.backward && s.saved)
      out.push_back({s.name, s.shape, s.dtype, s.category, true, elements(s.shape) * Dim(row(s.dtype).bits / 8), 2, -1, false});
  return out;
}

}  // namespace oomplan
