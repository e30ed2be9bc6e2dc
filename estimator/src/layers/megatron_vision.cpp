#include "layers/megatron_vision.hpp"

#include <algorithm>
#include <utility>

#include "layers/model.hpp"
#include "layers/ops.hpp"
#include "layers/ops_state.hpp"
#include "layers/vision_ops.hpp"

namespace oomplan {
namespace {

using namespace ops;
using axis::B, axis::S;

constexpr std::int64_t kChannels = 3;

}  // namespace

// TransformerBlock._checkpointed_forward of the tower's own block, with the language model's method and number.
std::vector<TowerGroup> tower_groups(const Tower& t, const ChunkOptions& o) {
  std::vector<TowerGroup> out;
  const bool full = o.recompute == Recompute::full, uniform = o.settings.recompute_method == RecomputeMethod::uniform;
  const std::int64_t run = full && uniform ? o.settings.recompute_layers : 1;
  for (std::int64_t begin = 0; begin < t.layers; begin += run) {
    TowerGroup unit{1, std::min(run, t.layers - begin), full && (uniform || begin < o.settings.recompute_layers)};
    for (const std::int64_t block : t.deepstack_blocks)
      if (block >= begin && block < begin + unit.blocks) unit.feeds.push_back(block - begin);
    const bool alike =
        !out.empty() && out.back().feeds.empty() && out.back().blocks == unit.blocks && out.back().checkpoint == unit.checkpoint;
    if (!alike) {
      out.push_back(std::move(unit));
      continue;
    }
    ++out.back().count;
    out.back().feeds = std::move(unit.feeds);
  }
  return out;
}

Architecture tower_model(const Tower& t) {
  const bool gated = t.kind == "qwen2_5_vl";
  Layer layer;
  layer.mixer.kind = MixerKind::attention;
  layer.mixer.heads = layer.mixer.kv_heads = t.heads;
  layer.mixer.head_dim = layer.mixer.rotary_dim = t.heads > 0 ? t.hidden / t.heads : 0;
  layer.mixer.q_bias = layer.mixer.k_bias = layer.mixer.v_bias = layer.mixer.out_bias = true;
  layer.feed_forward.kind = gated ? FeedForwardKind::gated : FeedForwardKind::plain;
  layer.feed_forward.activation = gated ? Activation::silu : Activation::gelu_tanh;
  layer.feed_forward.width = t.width;
  layer.feed_forward.bias = true;
  layer.norm = gated ? NormKind::rms : NormKind::layer;
  Architecture out;
  out.name = t.kind;
  out.hidden = t.hidden;
  out.final_norm = layer.norm;
  out.runs = {{layer, t.layers}};
  return out;
}

// mbridge models/{qwen2_5_vl,qwen3_vl}/transformer_config.py: get_vision_model_config. Megatron-Bridge's tower has
// TransformerConfig's gradient_accumulation_fusion, which is off.
ChunkOptions tower_options(const Tower& t, const ChunkOptions& o) {
  ChunkOptions out;
  out.te = o.te;
  out.te.sequence_parallel = out.te.several_sequences = out.te.attention_dropout = false;
  out.te.context = 1;
  out.te.rows = o.vision.patches() / o.image_rows;
  out.settings = o.settings;
  if (o.settings.maker == ModelMaker::megatron_bridge) {
    out.te.fused_gradients = false;
    out.settings.recompute_modules.clear();  // TransformerConfig's own
  }
  out.settings.rotary_fusion = out.settings.activation_fusion = out.settings.bias_dropout_fusion = false;
  out.recompute = o.recompute;
  out.forward_only = o.forward_only;
  out.adapters = o.adapters;
  if (o.adapters.rank > 0) {
    if (!o.adapters.tower) out.adapters = {.frozen = true};
  } else {
    out.adapters.frozen = o.adapters.frozen || o.tower != TowerTraining::all;
  }
  out.rotary_in_fp32 = t.kind == "qwen3_vl";
  out.own_attention = true;
  return out;
}

MegatronTower::MegatronTower(Eager& g, const Architecture& a, const ChunkOptions& o, Enter enter)
    : g_(g), a_(a), o_(o), enter_(std::move(enter)) {}

void MegatronTower::plan(std::vector<Station>& stations) {
  if (tower_of_transformers(a_, o_)) {
    hf_ = std::make_unique<HfTower>(g_, a_, o_, stations);
    return;
  }
  const auto add = [&](StationPlace place, int run, std::int64_t count) {
    Station s;
    s.place = place;
    s.run = run;
    s.count = count;
    s.simulated = static_cast<int>(std::min<std::int64_t>(kSimulatedUnits, count));
    stations.push_back(s);
  };
  add(StationPlace::vision, -1, 1);
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    add(StationPlace::tower, static_cast<int>(i), groups_[i].count);
    if (!groups_[i].feeds.empty()) add(StationPlace::deepstack, static_cast<int>(i), 1);
  }
  add(StationPlace::merge, -1, 1);
}

void MegatronTower::enter_inputs() {
  const Dim width(kChannels * t_.temporal_patch * t_.patch * t_.patch);
  const std::int64_t all = o_.all_images > 0 ? o_.all_images * vision_.rows * vision_.columns : vision_.patches();
  pixels_ = g_.make("pixel_values", {Dim(all), width}, DType::fp32, Category::inputs);
}

/// A product with parameters of the tower whose gradient goes once it has been added up.
Tensor MegatronTower::weighted(Tensor out, const char* node, const Tensor& kept, Shape of_weight, const std::string& name) {
  if (options_.adapters) return out;
  const Tensor weight = te_weight(g_);
  const Saved saved = g_.will_record({&weight}) ? g_.save(kept) : Saved();
  g_.record(out, node, {&weight}, [this, saved, of_weight, name](Gradients) {
    (void)saved.get();
    return Gradients{gradient(g_, (name + ".weight_gradient").c_str(), of_weight, DType::bf16)};
  });
  return out;
}

Tensor MegatronTower::copied(const Tensor& x, const std::string& name) { return te_contiguous(g_, x, name); }

/// Conv3d of every patch by itself.
Tensor MegatronTower::patches() {
  const Tensor pixels = to(g_, pixels_, DType::bf16, "pixel_values.bf16");
  Tensor out = g_.make("patch_embed", {rows_, B, Dim(t_.hidden)}, DType::bf16);
  return weighted(std::move(out), "ConvolutionBackward0", pixels, {Dim(t_.hidden), pixels.shape.back()}, "patch_embed");
}

/// Qwen3-VL: four rows of a table for every patch, weighted, summed and put in the order of the patches. Qwen2.5-VL: patches of
/// a window side by side.
Tensor MegatronTower::with_positions(Tensor hidden) {
  if (!qwen3_) {
    const Tensor index = g_.make("window_index", {image_rows(), B}, DType::int64, Category::buffers);
    return index_rows(g_, std::move(hidden), index, {rows_, B, Dim(t_.hidden)}, "by_window");
  }
  const Shape taps{Dim(4), rows_, B, Dim(t_.hidden)};
  Tensor sum;
  {
    const Tensor index = g_.make("pos_embed.index", {Dim(4), rows_, B}, DType::int64, Category::buffers);
    const Tensor weights = g_.make("pos_embed.weights", {Dim(4), rows_, B, Dim(1)}, DType::bf16, Category::buffers);
    Tensor rows = g_.make("pos_embed.rows", taps, DType::bf16);
    rows = weighted(std::move(rows), "EmbeddingBackward0", index, {Dim(t_.positions), Dim(t_.hidden)}, "pos_embed");
    const Tensor scaled = mul(g_, std::move(rows), weights, "pos_embed.weighted");
    sum = sum_of_taps(scaled);
    Tensor ordered = copied(sum, "pos_embed.ordered");
    sum = copied(ordered, "pos_embed.joined");
  }
  position_rows_ = sum;
  return add(g_, std::move(hidden), std::move(sum), "with_positions");
}

/// taps[0] + taps[1] + taps[2] + taps[3]: each tap's gradient is one of all four, filled in.
Tensor MegatronTower::sum_of_taps(const Tensor& taps) {
  const Shape one{rows_, B, Dim(t_.hidden)};
  Tensor sum;
  for (const char* name : {"pos_embed.sum_of_2", "pos_embed.sum_of_3", "pos_embed.sum"}) {
    Tensor next = g_.make(name, one, DType::bf16);
    sum = std::move(next);
  }
  g_.record(sum, "SelectBackward0", {&taps}, [this, all = taps.shape](Gradients in) {
    const Tensor of_tap = gradient(g_, "pos_embed_backward.tap", all, in[0].dtype);
    return Gradients{gradient(g_, "pos_embed_backward", all, in[0].dtype)};
  });
  return sum;
}

/// `merges`: it is the last unit of its group.
Tensor MegatronTower::run_unit(const TowerGroup& group, bool merges, const Tensor& in) {
  Tensor hidden = in;
  for (std::int64_t i = 0; i < group.blocks; ++i) {
    Tensor next = run_megatron_layer(g_, model_, model_.runs[0].layer, options_, hidden);
    hidden = std::move(next);
    if (!merges || std::ranges::find(group.feeds, i) == group.feeds.end()) continue;
    Tensor feature = merged(hidden, true);
    if (!g_.in_backward) features_.push_back(std::move(feature));
  }
  return hidden;
}

/// PatchMerger, or Qwen2.5-VL's final norm and projector: merge^2 patches are one row. `behind_block`: the norm is over that row.
Tensor MegatronTower::merged(const Tensor& hidden, bool behind_block) {
  const std::int64_t wide = unit_ * t_.hidden;
  const Shape rows{image_rows(), B, Dim(wide)};
  TeOptions te = options_.te;
  te.rows = image_rows().coefficient;
  Tensor in = behind_block ? view(hidden, rows) : hidden;
  const bool adapted = o_.adapters.rank > 0;
  if (options_.adapters.frozen && !adapted && g_.grad_enabled)
    in.grad_fn = te_weight(g_).grad_fn;  // the norm's backward pass makes a gradient that nobody takes
  Tensor x = view(te_norm(g_, in, model_.final_norm, "merger.norm"), rows);
  Tensor inner = adapted ? adapted_column(g_, x, wide / te.tensor, te, options_.adapters, "merger.fc1")
                         : te_column_linear(g_, x, wide / te.tensor, te, "merger.fc1");
  x = activation(g_, std::move(inner), "merger.act");
  const Tensor out = adapted ? adapted_row(g_, x, t_.out_hidden, te, options_.adapters, "merger.fc2")
                             : te_row_linear(g_, x, t_.out_hidden, te, "merger.fc2");
  return megatron_with_bias(g_, out, "merger.fc2.biased");
}

void MegatronTower::run_blocks(Tensor& hidden) {
  for (std::size_t i = 0; i < groups_.size(); ++i) {
    const TowerGroup& group = groups_[i];
    const auto simulated = static_cast<int>(std::min<std::int64_t>(kSimulatedUnits, group.count));
    for (int unit = 0; unit < simulated; ++unit) {
      enter_(StationPlace::tower, static_cast<int>(i), unit);
      g_.prefix = "vision.layer.";
      const bool last = unit + 1 == simulated;
      if (group.checkpoint && !o_.forward_only) {
        // the features leave the checkpoint in a list, which autograd does not look into: no gradient comes back to their merger
        const auto body = [this, &group, last](const Tensor& in) { return run_unit(group, last, in); };
        Tensor next = g_.grad_enabled ? g_.checkpoint_reentrant(hidden, body, {rotary_}) : body(hidden);
        hidden = std::move(next);
        continue;
      }
      Tensor next = run_unit(group, false, hidden);
      hidden = std::move(next);
      if (!last || group.feeds.empty()) continue;
      enter_(StationPlace::deepstack, static_cast<int>(i), 0);
      const bool body = std::exchange(g_.grad_enabled, merges_with_graph_);
      features_.push_back(merged(hidden, true));
      g_.grad_enabled = body;
    }
  }
}

/// qwen3vl_cp_split and get_vision_cp_data (mbridge/core/util.py): each image is copied, then all of them one behind another, of
/// which a rank has a view.
Tensor MegatronTower::own_pixels() {
  if (o_.image_ranks == 1) return pixels_;
  const Tensor copies = g_.make("pixel_values.copied", pixels_.shape, DType::fp32, Category::temporaries);
  dealt_ = g_.make("pixel_values.dealt", pixels_.shape, DType::fp32, Category::temporaries);
  return dealt_.alias({Dim(vision_.patches()), pixels_.shape.back()});
}

/// What is frozen and reads pixels asks for no gradient.
void MegatronTower::run() {
  const bool records = g_.grad_enabled;
  const bool adapted = o_.adapters.rank > 0;  // autograd finds what needs a gradient
  merges_with_graph_ = records && (adapted || o_.tower != TowerTraining::none);
  g_.grad_enabled = records && (adapted || !options_.adapters.frozen);
  make_features();
  g_.grad_enabled = records;
}

void MegatronTower::make_features() {
  if (hf_) {
    enter_(StationPlace::vision, -1, 0);
    images_ = hf_->features(own_pixels());
    enter_(StationPlace::merge, -1, 0);
    images_ = copied(images_, "images");
    gather(images_);
    g_.prefix.clear();
    return;
  }
  enter_(StationPlace::vision, -1, 0);
  g_.prefix = "vision.";
  Tensor hidden = with_positions(patches());
  rotary_ = g_.make("rotary", {rows_, B, Dim(1), Dim(model_.runs[0].layer.mixer.rotary_dim)}, DType::fp32, Category::buffers);
  // checkpoints need an input with a gradient, here, too (megatron/bridge/peft/recompute.py)
  if (o_.adapters.rank > 0 && o_.recompute == Recompute::full) hidden.grad_fn = te_weight(g_).grad_fn;
  {
    const Tensor first = hidden;  // the caller's name for what the blocks take
    run_blocks(hidden);
  }
  enter_(StationPlace::merge, -1, 0);
  g_.prefix = "vision.";
  g_.grad_enabled = merges_with_graph_;
  const Tensor out = merged(hidden, false);
  hidden.reset();
  rotary_.reset();
  position_rows_.reset();
  if (qwen3_) {
    images_ = copied(out, "images");
  } else {
    const Tensor index = g_.make("reverse_index", {image_rows(), B}, DType::int64, Category::buffers);
    images_ = index_rows(g_, out, index, out.shape, "images");
  }
  gather(images_);
  for (Tensor& one : features_) gather(one);
  g_.prefix.clear();
}

/// AllGatherVisionEmbeddings: of images that ranks of a context share out. Its gradient is this rank's part.
void MegatronTower::gather(Tensor& x) {
  if (o_.image_ranks == 1) return;
  const Shape all{Dim(o_.all_images * vision_.rows * vision_.columns / unit_), Dim(1), x.shape.back()};
  const Tensor parts = g_.make("images.parts", all, x.dtype, Category::communication);
  Tensor out = g_.make("images.gathered", all, x.dtype);
  g_.record(out, "AllGatherVisionEmbeddings", {&x}, [part = x.shape](Gradients in) { return Gradients{in[0].alias(part)}; });
  x = std::move(out);
}

/// preprocess_packed_seqs: zeros, into which the rows of every sequence are copied.
Tensor MegatronTower::packed(const Tensor& rows, const std::string& name) {
  Tensor out = g_.make(name, {o_.te.whole(), B, rows.shape.back()}, rows.dtype);
  g_.record(out, "CopySlices", {&rows}, [this, name, from = rows.shape](Gradients in) {
    const Tensor cleared = gradient(g_, (name + "_backward.cleared").c_str(), in[0].shape, in[0].dtype);
    return Gradients{gradient(g_, (name + "_backward").c_str(), from, in[0].dtype)};
  });
  return out;
}

/// Each list of features is laid out as the rows are packed.
void MegatronTower::pack_features() {
  if (!qwen3_) return;
  const Tensor all = g_.make("deepstack.rows", {all_tokens(), B, Dim(a_.hidden)}, DType::bf16, Category::temporaries);
  Tensor laid_out, last;
  for (Tensor& one : features_) {
    Tensor packed = g_.make("deepstack.packed", {o_.te.whole(), B, Dim(a_.hidden)}, DType::bf16, Category::temporaries);
    laid_out = std::move(packed);
    Tensor next = copied(one, "deepstack.features");
    last = std::move(one);
    one = std::move(next);
  }
  names_ = {all};
  if (!features_.empty()) names_.insert(names_.end(), {std::move(laid_out), std::move(last)});
}

/// split_deepstack_embs: of features in the place of this rank's tokens.
void MegatronTower::take_parts() {
  if (features_.empty() || (!o_.te.sequence_parallel && o_.te.context == 1)) return;
  const Shape part{Dim(o_.rank_features), B, Dim(a_.hidden)};
  for (Tensor& one : features_) {
    Tensor own = g_.make("deepstack.of_rank", part, DType::bf16);
    g_.record(own, "IndexBackward0", {&one}, [this, from = one.shape](Gradients in) {
      return Gradients{gradient(g_, "deepstack.of_rank_backward", from, in[0].dtype)};
    });
    names_.push_back(std::exchange(one, own));
  }
}

void MegatronTower::make_tables() {
  std::int64_t width = 0;
  for (const LayerRun& run : a_.runs) width = std::max(width, run.layer.mixer.rotary_dim);
  const bool alike = o_.packed == 0 && vision_.images == 0;  // get_rope_index: all three rows are views of one
  const Dim tokens = o_.packed == 0 ? all_tokens() : o_.te.whole();
  positions_ = g_.make("position_ids", {Dim(alike ? 1 : 3), B, tokens}, DType::int64, Category::inputs);
  const Dim sequences = o_.te.several_sequences ? B : Dim(1);
  table_ = g_.make("rotary_table", {o_.te.whole(), sequences, Dim(1), Dim(width)}, DType::fp32, Category::buffers);
}

std::vector<Tensor> MegatronTower::arguments() const {
  std::vector<Tensor> out{table_};
  if (adds_in_checkpoint()) out.insert(out.end(), features_.begin(), features_.end());
  return out;
}

/// x[mask] = images, in place.
Tensor MegatronTower::with_images(const Tensor& x) {
  Tensor rows = x;
  const Tensor mask = g_.make("image_mask", {B, all_tokens()}, DType::boolean, Category::buffers);
  const Saved saved = g_.will_record({&rows, &images_}) ? g_.save(mask) : Saved();
  Tensor with = rows.alias(rows.shape);
  const Shape features = images_.shape;
  const bool learns = images_.grad_fn != nullptr;
  g_.record(with, "IndexPutBackward0", {&rows, &images_}, [this, saved, features, learns](Gradients in) {
    (void)saved.get();
    Tensor text = gradient(g_, "embedding_backward.of_text", in[0].shape, in[0].dtype);
    if (!learns) return Gradients{std::move(text), Tensor()};
    return Gradients{std::move(text), gradient(g_, "embedding_backward.of_images", features, in[0].dtype)};
  });
  return with;
}

/// split_data_cp_rank: an early and a late stretch of every sequence.
Tensor MegatronTower::own_stretches(const Tensor& all) {
  const Tensor stretches = g_.make("embedding.stretches", {Dim(2)}, DType::int64);
  Tensor out = g_.make("embedding.of_rank", {o_.te.whole(), B, all.shape.back()}, all.dtype);
  const Saved saved = g_.will_record({&all}) ? g_.save(stretches) : Saved();
  g_.record(out, "IndexSelectBackward0", {&all}, [this, saved, whole = all.shape](Gradients in) {
    (void)saved.get();
    return Gradients{gradient(g_, "embedding_backward.of_all_ranks", whole, in[0].dtype)};
  });
  return out;
}

/// Qwen25VLModel.forward: embeddings by sequence, and over them the features. Turned back they are a view.
Tensor MegatronTower::scattered(const Tensor& embedded) {
  const bool several = o_.te.several_sequences;
  Tensor x = several ? copied(embedded, "embedding.by_sequence") : embedded;
  if (vision_.images > 0) {
    run();
    image_mask_ = g_.make("image_mask", {B, all_tokens()}, DType::boolean, Category::buffers);
    Tensor with = vision_ops::masked_scatter(g_, x, image_mask_, images_, o_.kernel_internals);
    x = std::move(with);
  }
  if (!several || o_.te.sequence_parallel) return x;
  names_ = {x};  // the norm of the first layer puts its rows together
  return copied(x, "embedding.by_token_again");
}

/// Padded: of one sequence a turn of both axes is no copy.
Tensor MegatronTower::joined(const Tensor& embedded) {
  if (embeds_before_tower(a_, o_)) return scattered(embedded);
  const bool packs = o_.packed > 0, turns = packs || o_.te.several_sequences;
  const auto turned = [&](const Tensor& x, const std::string& name) { return turns ? copied(x, name) : x; };
  Tensor x = copied(packs ? copied(embedded, "embedding.by_token") : embedded, "embedding.cloned");
  if (images_) {
    Tensor rows = turned(x, "embedding.by_sequence");
    x.reset();
    const Tensor with = with_images(rows);
    rows.reset();
    x = turned(with, "embedding.joined");
    if (packs && !hf_) pack_features();
  }
  if (!packs) return o_.te.context > 1 ? own_stretches(x) : x;
  Tensor out = packed(copied(x, "embedding.rows"), "embedding.packed");
  take_parts();
  return out;
}

std::vector<Tensor> MegatronTower::features_of(const LayerGroup& group) const {
  const auto first = static_cast<std::size_t>(group.featured);
  const std::size_t end = std::min({features_.size(), static_cast<std::size_t>(o_.featured), first + group.layers.size()});
  std::vector<Tensor> out;
  for (std::size_t i = first; i < end; ++i) out.push_back(features_[i]);
  return out;
}

Tensor MegatronTower::with_features(const Tensor& hidden, const Tensor& feature) {
  const Shape part{Dim(o_.rank_features), B, Dim(a_.hidden)};
  const Tensor mask = g_.make("deepstack.mask", {B, hidden.shape[0]}, DType::boolean, Category::buffers);
  {
    Tensor picked = g_.make("deepstack.picked", part, DType::bf16, Category::temporaries);
    Tensor cloned = g_.make("deepstack.cloned", part, DType::bf16, Category::temporaries);
    picked.reset();
    const Tensor sum = g_.make("deepstack.sum", part, DType::bf16, Category::temporaries);
  }
  Tensor out = hidden.alias(hidden.shape);
  const Saved saved = g_.will_record({&hidden, &feature}) ? g_.save(mask) : Saved();
  g_.record(out, "IndexPutBackward0", {&hidden, &feature}, [this, saved, part](Gradients in) {
    (void)saved.get();
    Tensor rest = gradient(g_, "deepstack_backward.rest", in[0].shape, in[0].dtype);
    Tensor of_feature = gradient(g_, "deepstack_backward.features", part, in[0].dtype);
    {
      const Tensor of_picked = gradient(g_, "deepstack_backward.picked", in[0].shape, in[0].dtype);
    }
    return Gradients{std::move(rest), std::move(of_feature)};
  });
  return out;
}

void MegatronTower::leave_forward() {
  leave_model();
  pixels_.reset();
}

void MegatronTower::leave_model() {
  for (Tensor* one : {&dealt_, &images_, &image_mask_, &positions_, &table_}) one->reset();
  if (hf_) hf_->leave_forward();
  features_.clear();
  names_.clear();
}

}  // namespace oomplan
