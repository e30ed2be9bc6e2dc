#include "layers/model_pass.hpp"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include <oomplan/units/errors.hpp>

#include "layers/archon.hpp"
#include "layers/archon_experts.hpp"
#include "layers/compiled_layer.hpp"
#include "layers/experts.hpp"
#include "layers/stash_offload.hpp"
#include "layers/tensor_parallel.hpp"
#include "layers/torchtune.hpp"
#include "layers/vectors.hpp"

namespace oomplan {

using namespace ops;
using axis::B, axis::C, axis::K, axis::S, axis::T, axis::TK;

namespace {

/// The graph begins behind the first layer's rotation: the tables of positions go with the second layer then.
bool rotated(std::string_view target) {
  return target.find("q_") == 0 || target.find("k_") == 0 || target.find("kv_") == 0 || target.find("qkv") == 0 ||
         target == "query_key_value" || target == "c_attn";
}
bool begins_late(const PassOptions& o) {
  const AdapterOptions& adapters = o.kernels.adapters;
  if (adapters.rank == 0 || adapters.by_module || adapters.input_gradients || adapters.targets.empty()) return false;
  return std::none_of(adapters.targets.begin(), adapters.targets.end(), rotated);
}

/// By peft's rule: the numbers of the sets of layers' modules; the first layer with adapters has a number of its own where the
/// graph begins behind its rotation.
std::vector<int> kinds_of_layers(const AdapterOptions& adapters) {
  const AdaptedModules& m = adapters.modules;
  std::vector<int> out = m.of_layer;
  if (adapters.input_gradients || m.has_outside("embed_tokens") || m.saves("embed_tokens")) return out;
  const auto adapted = [&](int set) { return !m.sets[static_cast<std::size_t>(set)].empty(); };
  const auto first = std::find_if(out.begin(), out.end(), adapted);
  if (first == out.end()) return out;
  const std::vector<std::string>& set = m.sets[static_cast<std::size_t>(*first)];
  const auto in_front = [](std::string_view leaf) {  // of a rotation, or of a mixer that has none
    return rotated(leaf.substr(leaf.rfind('.') + 1)) || leaf.starts_with("linear_attn.") || leaf.starts_with("mixer.") ||
           leaf.starts_with("conv.");
  };
  if (std::none_of(set.begin(), set.end(), in_front)) *first = static_cast<int>(m.sets.size());
  return out;
}

SpacedRuns runs_of(const Architecture& a, const PassOptions& o) {
  SpacedRuns runs =
      spaced_runs(is_litgpt(o.kernels.kernels) ? litgpt_architecture(a, o.kernels.adapters.kind) : part_of(a, o.kernels.tensor),
                  o.recompute_every, o.kernels.kernels == Kernels::torchtitan || o.kernels.kernels == Kernels::archon);
  if (o.kernels.adapters.rank > 0 && o.kernels.adapters.by_module)
    runs = cut_by(std::move(runs), kinds_of_layers(o.kernels.adapters));
  const std::int64_t apart =
      std::max<std::int64_t>({begins_late(o) ? 1 : 0, o.kernels.vision.has_features() ? a.tower.deepstack : 0, stash_warm_up(o)});
  if (apart > 0) return first_apart(std::move(runs), apart);
  return o.kernels.offload_activations == OffloadActivations::verl ? first_apart(std::move(runs)) : runs;
}

}  // namespace

ModelPass::ModelPass(Eager& g, const Architecture& a, const PassOptions& o)
    : g_(g), spaced_(runs_of(a, o)), o_(o), code_(family_code(a.family)), kernels_(o.kernels), vocabulary_(a.vocab) {
  kernels_.hidden_dropout = o.training && a.hidden_dropout > 0;
  kernels_.softcap = a.runs.front().layer.mixer.softcap;
  kernels_.attention_dropout = o.training && a.attention_dropout > 0;
  g.frozen_keeps_input = o.kernels.frozen_keeps_input;
  g.casts_softmax = o.kernels.casts_softmax;
  g.autocasts_to_half = o.kernels.autocasts_to_half;
  g.low_rank_dropout = o.training && o.kernels.adapters.dropout;
  // routed while nothing is recorded; GRPO's gradient pass goes through peft's own forward (grpo.py _loss, base.py
  // _get_logprobs)
  g.low_rank_apart = o.kernels.adapters_apart && !o.training;
  g.packed = o.kernels.packed;
  g.wide_routers = o.kernels.wide_routers;
  g.views_of_flat = o.kernels.views_of_flat;
  g.offload_checkpoints = o.kernels.offload_checkpoints;
  g.keeps_checkpoints = o.kernels.keeps_checkpoints;
  g.keeps_recomputed_graph = std::any_of(a.runs.begin(), a.runs.end(), [](const LayerRun& r) { return r.layer.mixer.stores_kv; });
  g.recomputes_all = o.kernels.kernels == Kernels::archon;
}

ModelRun ModelPass::run() {
  plan_stations();
  declare();
  leave_to_others();
  g_.autocast = o_.kernels.autocast;
  g_.grad_enabled = o_.training;
  begin_offload();
  Tensor loss = forward();
  if (o_.kernels.offload_activations != OffloadActivations::trl) g_.hooks = nullptr;  // TRL's stand around the whole step
  if (tower_) tower_->leave_forward();
  g_.autocast = false;
  if (o_.training) {
    enter(StationPlace::finish);
    Tensor one = g_.make("loss.gradient", {}, DType::fp32, Category::temporaries);
    leave_step();
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
  caches_.clear();
  if (tower_) tower_->leave_inputs();
  return std::move(out_);
}

int ModelPass::simulated_layers() const {
  int all = 0;
  for (const Station& s : out_.stations)
    if (s.place == StationPlace::layers) all += s.simulated;
  return all;
}

void ModelPass::begin_offload() {
  const OffloadActivations how = o_.kernels.offload_activations;
  if (!o_.training || how == OffloadActivations::none) return;
  if (offloads_by_stash(how))
    g_.hooks = &stash_.emplace(g_, how, o_.recompute == Recompute::full);
  else
    offload_.emplace(g_, how, simulated_layers() + (head_is_group() ? 1 : 0));
  if (offload_ && offload_->around_model()) g_.hooks = &*offload_;
}

// What the function that computes the loss names goes when it returns: in front of the backward pass, behind a reference's.
void ModelPass::leave_step() {
  const std::size_t before = g_.events.size();
  logged_.clear();
  step_names_.reset();
  if (o_.training) out_.leaving += g_.events.size() - before;
  const bool outer = std::exchange(g_.in_backward, o_.training);
  g_.leave_autocast();
  g_.in_backward = outer;
}

void ModelPass::plan_stations() {
  const auto single = [&](StationPlace p) {
    Station s;
    s.place = p;
    out_.stations.push_back(s);
  };
  single(StationPlace::inputs);
  single(StationPlace::embedding);
  const std::size_t before = out_.stations.size();
  if (parts_) parts_->plan(out_.stations, a_.runs.size());
  for (std::size_t s = before; s < out_.stations.size(); ++s) out_.stations[s].called = !idle_;
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

void ModelPass::enter(StationPlace place, int run, int unit) {
  for (std::size_t i = 0; i < out_.stations.size(); ++i)
    if (out_.stations[i].place == place && out_.stations[i].run == run) g_.scope = static_cast<int>(i) * kUnitsPerStation + unit;
}

void ModelPass::declare() {
  const DType dtype = o_.kernels.parameters, outer = o_.kernels.casts_heads ? DType::bf16 : dtype;
  if (parts_) parts_->declare();
  enter(StationPlace::embedding);
  embedding_ = g_.parameter("model.embed_tokens.weight", {a_.vocab, width_}, outer);
  const int table = embedding_;  // a tied output layer's weight
  const AdapterOptions& adapters = kernels_.adapters;
  if (adapters.by_module && adapters.modules.saves("embed_tokens")) {
    embedding_ = trained_copy(table, "model.embed_tokens.modules_to_save.weight");
  } else if (adapters.by_module && adapters.modules.has_outside("embed_tokens")) {
    embedding_in_ = g_.parameter("model.embed_tokens.lora_embedding_A", {adapters.rank, a_.vocab}, adapters.dtype);
    embedding_out_ = g_.parameter("model.embed_tokens.lora_embedding_B", {width_, adapters.rank}, adapters.dtype);
  }
  enter(StationPlace::preamble);  // what else stands in front of the layers is no part of a unit around the embedding's module
  if (a_.position_rows > 0) position_table_ = g_.parameter("model.embed_positions.weight", {a_.position_rows, a_.hidden}, outer);
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
      kernels_.adapters.layer = number;
      layers_.push_back(is_litgpt(kernels_.kernels)
                            ? declare_litgpt_layer(g_, a_, layer, dtype, kernels_.adapters, number)
                            : declare_layer(g_, a_, layer, dtype, kernels_.adapters, expert_modules(kernels_, code_)));
    }
  }
  g_.prefix.clear();
  enter(StationPlace::norm);
  norm_ = declare_norm(g_, a_.final_norm, "model.norm", a_.hidden, dtype);
  enter(StationPlace::preamble);  // Gemma 3n and 4 have these behind their norm, which decides what an optimizer's loop meets
  if (a_.per_layer_vocab > 0) layer_inputs_ = declare_layer_inputs(g_, a_, outer, dtype, kernels_.adapters);
  if (altup()) copies_ = declare_copies(g_, a_, dtype, kernels_.adapters);
  enter(StationPlace::head);
  declare_head(outer, dtype, table);
  if (is_litgpt(kernels_.kernels)) adapt_litgpt_head(g_, a_, head_, kernels_.adapters);
  if (kernels_.adapters.rank > 0) freeze();
  if (o_.adapters_off)
    for (Leaf& leaf : g_.leaves) leaf.trainable = false;
}

// What lies on other GPUs is no parameter of this one.
void ModelPass::leave_to_others() {
  for (Leaf& leaf : g_.leaves) {
    const Station& station = out_.stations[static_cast<std::size_t>(leaf.scope / kUnitsPerStation)];
    const StationPlace place = station.place;
    const bool block = place == StationPlace::layers && station.run < static_cast<int>(a_.runs.size());
    const bool back = place == StationPlace::norm || place == StationPlace::head;
    if (back ? !o_.back : !block && !o_.front) leaf.shared = true;
  }
}

// peft's ModulesToSaveWrapper: the module stays, frozen, and a copy of it runs.
int ModelPass::trained_copy(int original, std::string name) {
  const Leaf first = g_.leaves[static_cast<std::size_t>(original)];
  const int copy = g_.parameter(std::move(name), first.shape, first.dtype);
  g_.leaves[static_cast<std::size_t>(copy)].of_base = true;
  saved_copies_.push_back(copy);
  return copy;
}

void ModelPass::declare_head(DType outer, DType dtype, int table) {
  const bool archon = kernels_.kernels == Kernels::archon;
  const AdapterOptions& adapters = kernels_.adapters;
  if (o_.critic)
    head_ = g_.parameter("score.weight", {1, width_}, dtype);
  else
    head_ = a_.tied && !archon ? table : g_.parameter("lm_head.weight", {a_.vocab, width_}, outer);
  if (archon && a_.tied && !o_.critic) g_.leaves.back().shared = true;
  if (!o_.critic && a_.head_bias) head_bias_ = g_.parameter("lm_head.bias", {a_.vocab}, dtype);
  if (!adapters.by_module || o_.critic) return;
  if (adapters.modules.has_outside("lm_head")) g_.add_low_rank(head_, adapters.rank, width_, a_.vocab, adapters.dtype);
  if (!adapters.modules.saves("lm_head")) return;
  head_ = trained_copy(head_, "lm_head.modules_to_save.weight");
  if (head_bias_ >= 0) head_bias_ = trained_copy(head_bias_, "lm_head.modules_to_save.bias");
}

// All parameters but the adapters.
void ModelPass::freeze() {
  std::vector<bool> adapter(g_.leaves.size());
  for (const auto& leaf : g_.leaves)
    for (const int pair : {leaf.low_rank_in, leaf.low_rank_out, leaf.magnitude, leaf.scale, leaf.shift, leaf.inner_scale})
      if (pair >= 0) adapter[static_cast<std::size_t>(pair)] = true;
  for (const int trained : {embedding_in_, embedding_out_})
    if (trained >= 0) adapter[static_cast<std::size_t>(trained)] = true;
  for (const int copy : saved_copies_) adapter[static_cast<std::size_t>(copy)] = true;
  for (const auto& layer : layers_)
    for (const int pair : {layer.qkv_lora_a, layer.qkv_lora_b, layer.gates})
      if (pair >= 0) adapter[static_cast<std::size_t>(pair)] = true;
  if (kernels_.adapters.kind == AdapterKind::adapter_v2) choose_norms(adapter);
  if (idle_ && parts_)
    for (std::size_t i = parts_->leaves().first; i < parts_->leaves().second; ++i) {
      g_.leaves[i].unreached = adapter[i];
      adapter[i] = false;
    }
  for (std::size_t i = 0; i < adapter.size(); ++i) g_.leaves[i].trainable = adapter[i];
  if (kernels_.adapters.joint) train_whole_units(adapter);
  if (std::find(adapter.begin(), adapter.end(), true) == adapter.end())
    throw InputError(Problem{{}, a_.name, "a model with one of the adapters' targets", "", "no linear layer has such a name"});
}

// LitGPT's second adapter trains the norms too, but for those behind a half (adapter_v2.py adapter_filter).
void ModelPass::choose_norms(std::vector<bool>& adapter) const {
  std::vector<NormLeaf> norms{norm_};
  for (const auto& layer : layers_) norms.insert(norms.end(), {layer.before_attention, layer.before_feed_forward});
  for (const NormLeaf& norm : norms)
    for (const int leaf : {norm.weight, norm.bias})
      if (leaf >= 0) adapter[static_cast<std::size_t>(leaf)] = true;
}

// FSDP1 with use_orig_params: views of a flat parameter ask for gradients if any part of it does
// (torch/distributed/fsdp/_flat_param.py _use_unsharded_views, 2.13). A layer is a unit, the root has the rest.
void ModelPass::train_whole_units(const std::vector<bool>& adapter) {
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
    if (std::string why = unsupported_compiled(a, o.kernels, o.recompute, o.training); !why.empty()) return why;
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
  return ModelPass(g, a, options).run();
}

}  // namespace oomplan
