#include "layers/model_pass.hpp"

#include <functional>
#include <utility>

#include "layers/archon_tree.hpp"
#include "layers/delta.hpp"
#include "layers/heads_verl.hpp"
#include "layers/heads_verl_fused.hpp"
#include "layers/tensor_parallel.hpp"
#include "layers/torchtune.hpp"

namespace oomplan {

using namespace ops;
using axis::B, axis::C, axis::K, axis::S, axis::T, axis::TK;

namespace {

/// verl's step holds what the model gave it, unless that was made fp32; torchtitan's does in any case.
bool holds_logits(LossHead h) {
  if (h == LossHead::cross_entropy || h == LossHead::cross_entropy_chunked || h == LossHead::cross_entropy_compiled ||
      takes_sequences(h))
    return true;
  const auto steps = verl_steps(h);
  return steps && !steps->fp32;
}

/// AReaL's `outputs` and `logits` stay referenced through the backward pass, of slime's FSDP backend `logits` in fp32.
bool keeps_logits(LossHead h) {
  return h == LossHead::areal_compiled || h == LossHead::areal_eager || h == LossHead::areal_clamped || h == LossHead::slime_fsdp;
}

}  // namespace

/// What generate() and its caller name beside a pass behind the first one: ids, mask and positions of the prompt and of all
/// tokens so far, and the last token's logits in fp32 (executed, transformers 5.24).
void ModelPass::name_earlier_tokens() {
  const bool alone = kernels_.kv_cache == KvCache::grows;  // the pass itself has one token
  const int names = alone ? (kernels_.padding_mask ? 6 : 5) : 3;
  for (int i = 0; i < names; ++i)
    caches_.push_back(g_.make("generated_ids", {B, alone ? axis::D : all_}, DType::int64, Category::inputs));
  caches_.push_back(g_.make("next_token_logits.before", {B, Dim(a_.vocab)}, DType::fp32, Category::logits));
}

DType ModelPass::format_of_logits() const {
  const bool wide = kernels_.release.widens_logits || code_.logits_in_fp32;
  return wide ? DType::fp32 : g_.leaves[static_cast<std::size_t>(head_)].dtype;
}

// Heads that take hidden states: inside of the model's forward pass, whose names and casts live until it returns, and behind.
Tensor ModelPass::hidden_loss_inside(const HeadOptions& head, const std::function<void(int)>& scope) {
  Tensor hidden = decoder();
  enter(StationPlace::loss);
  Tensor loss = run_hidden_head(g_, hidden, head, scope);
  g_.leave_autocast();
  enter(StationPlace::finish);
  positions_.reset();
  if (verl_fused(head.head)) labels_.reset();  // verl's step returns before the backward pass begins: the graph has them alone
  return loss;
}

Tensor ModelPass::hidden_loss(const HeadOptions& head, const std::function<void(int)>& scope) {
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

Tensor ModelPass::output_layer(Tensor in) {
  return linear(g_, std::move(in), head_, head_bias_, TK, {B, K, o_.critic ? 1 : a_.vocab}, o_.critic ? "values" : "logits",
                Category::logits);
}

/// verl/utils/activation_offload.py, 0.9: ActivationHandler.forward. The last group's variables stay.
Tensor ModelPass::output_group(const Tensor& in) {
  g_.hooks = &*offload_;
  const auto body = [this](const Tensor& x) { return output_layer(x); };
  Tensor out = o_.recompute == Recompute::full ? g_.checkpoint_reentrant(in, body) : body(in);
  return offload_->commit(std::move(out));
}

Tensor ModelPass::logits(const Tensor& hidden) {
  Tensor kept = o_.slice_hidden ? slice(g_, hidden, {B, K, Dim(width_)}) : hidden;
  // FSDP2 casts what its unit gets in front of the gather
  if (code_.logits_in_fp32) kept = to(g_, std::move(kept), g_.leaves[static_cast<std::size_t>(head_)].dtype, "hidden_cast");
  enter(StationPlace::head);
  {
    const DistributedGuard dtensors(g_, kernels_.tensor > 1);
    kept = gather_tokens(g_, kept, kernels_, "hidden_gathered");
  }
  // rows of several sequences are no longer one block: the matrix product needs a copy
  const bool cast = g_.autocast && kept.dtype == DType::fp32;  // a tensor of its own, which autocast makes anyway
  if (o_.slice_hidden && o_.kernels.several_sequences && !cast)
    kept = copy(g_, std::move(kept), {B, K, Dim(width_)}, "hidden_kept");
  SavedHooks* outside = g_.hooks;
  if (stash_spares_head(o_)) g_.hooks = nullptr;
  Tensor out = offload_ && head_is_group() ? output_group(kept) : output_layer(std::exchange(kept, {}));
  kept.reset();
  g_.hooks = outside;
  out = cast_output(std::move(out), kernels_.casts_head_output, "logits.output_cast");
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
void ModelPass::clone_outputs(Tensor& loss, Tensor& output) {
  Tensor of_loss = loss ? copy(g_, loss, loss.shape, "loss.clone") : Tensor();
  Tensor of_output = copy(g_, output, output.shape, "logits.clone");
  loss = std::move(of_loss);
  output = std::move(of_output);
}

// tanh(logits / cap) * cap, each step bound to the same name.
void ModelPass::soft_cap(Tensor& logits) {
  Tensor next = scale(g_, logits, "logits.divided", Category::logits);
  logits = std::move(next);
  next = tanh(g_, logits, "logits.tanh");
  logits = std::move(next);
  next = scale(g_, logits, "logits.capped", Category::logits);
  logits = std::move(next);
}

Tensor ModelPass::forward() {
  enter(StationPlace::inputs);
  // Archon's Ulysses slices are views of whole tensors (ulysses_slice_inputs), and positions come with the batch
  const bool archon = kernels_.kernels == Kernels::archon;
  const Dim given = archon ? Dim(kernels_.ulysses) * all_ : all_;
  input_ids_ = g_.make("input_ids", {B, archon ? given : embedded_}, DType::int64, Category::inputs);
  labels_ = g_.make("labels", {B, given}, DType::int64, Category::inputs);
  if (kernels_.padding_mask) padding_ = g_.make("attention_mask", {B, given}, DType::int64, Category::inputs);
  caches_ = delta_caches(g_, kernels_);
  if (archon) packed_positions_ = g_.make("position_ids", {B, given}, DType::int64, Category::inputs);
  if (kernels_.tree) tree_mask_ = tree_mask(g_, given);
  if (tower_) tower_->enter_inputs();
  const HeadOptions head{.head = o_.critic && o_.head != LossHead::reward_pairs ? LossHead::value : o_.head,
                         .keep_outputs = o_.keep_outputs,
                         .vocab = a_.vocab,
                         .chunks = o_.chunks,
                         .several_sequences = kernels_.several_sequences,
                         .one_branch = kernels_.tree,
                         .split_vocabulary = kernels_.tensor > 1,
                         .slice_hidden = o_.slice_hidden,
                         .weight = head_,
                         .liger = kernels_.liger.code,
                         .copies_shifted = kernels_.release.copies_shifted,
                         .labels = labels_,
                         .metrics = computes_metrics(o_.head),
                         .logged = o_.logged,
                         .names = &logged_};
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
  if (kernels_.later_token) name_earlier_tokens();
  Tensor output, loss, output_before, scores_before;
  const bool evaluates = head.head == LossHead::lm_eval && o_.chooses;
  // `multi_logits` keeps those of a batch until the next one's are there (lm_eval/models/huggingface.py _loglikelihood_tokens)
  if (evaluates) scores_before = g_.make("log_probs.before", {B, K, Dim(a_.vocab)}, format_of_logits(), Category::logits);
  if (named) output_before = g_.make("logits.before", {B, all_, Dim(a_.vocab)}, DType::fp32, Category::logits);
  {
    Tensor hidden = decoder();
    if (o_.back) {
      output = logits(hidden);
    } else {
      hidden.reset();
      enter(StationPlace::head);
      if (o_.chooses) output = g_.make("logits.arrived", {B, K, Dim(a_.vocab)}, format_of_logits(), Category::logits);
    }
    if (o_.back && (kernels_.release.widens_logits || named)) {
      Tensor wide = to(g_, output, DType::fp32, "logits_fp32");
      output = std::move(wide);
    }
    if (inside_model(head.head)) {
      enter(StationPlace::loss);
      loss = run_head(g_, output, head, scope);
      g_.leave_autocast();
      enter(StationPlace::finish);
    }
    output = cast_output(std::move(output), true, "output_cast");
    loss = cast_output(std::move(loss), true, "loss.output_cast");
    positions_.reset();
    tree_mask_.reset();
    if (!stash_) g_.hooks = nullptr;
  }
  const bool sft = is_trl_sft(head.head);
  if ((takes_sequences(head.head) || sft || head.head == LossHead::trl_gkd) && g_.autocast) {
    // accelerate/utils/operations.py, 1.14: convert_outputs_to_fp32 wraps the forward pass under mixed precision, and with it
    // autocast (accelerator.py prepare_model)
    g_.leave_autocast();
    Tensor wide = to(g_, output, DType::fp32, "logits_fp32");
    output = std::move(wide);
  }
  if (o_.clones_outputs) clone_outputs(loss, output);
  if (sft && o_.training) sft_metrics(g_, output, kernels_.several_sequences, head.head == LossHead::trl_sft_1_3, a_.vocab);
  output_before.reset();
  if (head.head == LossHead::slime_fsdp) output = to(g_, std::move(output), DType::fp32, "logits_fp32");
  if (o_.keep_outputs || keeps_logits(head.head)) kept_outputs_ = output;
  if (inside_model(head.head)) return loss;
  if (head.head == LossHead::trl_gkd && o_.reference) return output;
  enter(StationPlace::loss);
  if (evaluates) caches_.clear();  // `self.model(inps).logits`: what else the model returned goes
  if (!o_.chooses) {
    output.reset();
    enter(StationPlace::finish);
    return {};
  }
  if (head.head == LossHead::trl_gkd) return teach(std::move(output));
  if (holds_logits(head.head)) {
    // the step's local variable `output` (verl), `pred` (torchtitan) holds the logits until it returns
    loss = run_head(g_, output, head, scope);
    enter(StationPlace::finish);
    if (is_preference(head.head)) {
      leave_names(output, head);
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

/// What the step's names hold until it returns.
void ModelPass::leave_names(Tensor& output, const HeadOptions& head) {
  if (head.head == LossHead::trl_kto_0_18) {
    logged_ = kto_halves(g_, output, a_.vocab);
    output.reset();  // a name of the function that made the log-probs
    return;
  }
  if (head.head == LossHead::trl_kto && head.metrics) logged_ = kto_copies(g_, logged_as(output, head.logged), a_.vocab);
  if (head.head == LossHead::trl_dpo_0_18) {  // of this very pass, and its names go with the function, too
    dpo_metrics(g_, output, head.head, a_.vocab);
    output.reset();
    return;
  }
  step_names_ = std::move(output);
}

/// The teacher's output has logits like the policy's, and the cache that transformers makes where nobody turns it off
/// (src/transformers/cache_utils.py DynamicCache, 5.24).
Tensor ModelPass::teach(Tensor output) {
  Tensor teacher = g_.make("teacher.logits", output.shape, output.dtype, Category::logits);
  const DType half = o_.kernels.autocasts_to_half ? DType::fp16 : DType::bf16, keys = o_.kernels.parameters;
  // tables of rotations have the parameters' format, and keys with them; values are as the product made them
  const DType values = o_.kernels.autocast ? half : keys;
  logged_.push_back(g_.make("teacher.keys", {B, all_, Dim(o_.teacher_keys)}, keys, Category::activations));
  logged_.push_back(g_.make("teacher.values", {B, all_, Dim(o_.teacher_values)}, values, Category::activations));
  Tensor loss = teacher_divergence(g_, output, teacher, a_.vocab);
  step_names_ = std::move(output);
  logged_.push_back(std::move(teacher));
  enter(StationPlace::finish);
  return loss;
}

// TRL's entropy of the policy's logits: DPO and KTO compute it behind the reference's pass, GRPO where it trains.
bool ModelPass::computes_metrics(LossHead h) const {
  if (is_grpo(h)) return o_.training;
  return (is_dpo(h) || is_kto(h)) && (o_.reference || (o_.training && !o_.refers));
}

}  // namespace oomplan
