// Settings of training engines.
#include <algorithm>

#include <fmt/ranges.h>

#include "job/knob_table.hpp"
#include "job/unsupported.hpp"

namespace oomplan {
namespace {

using namespace knob;

std::string get_offload(const Job&, const Role* r) {
  const Trainer& t = r->trainer;
  if (t.offload_parameters && t.offload_optimizer) return "[parameters, optimizer]";
  return t.offload_parameters ? "[parameters]" : t.offload_optimizer ? "[optimizer]" : "[]";
}
/// "[parameters, optimizer]", "parameters", "[]", "none".
Refusal set_offload(const Knob& k, Job&, Role* r, std::string_view text) {
  bool parameters = false, optimizer = false;
  for (const std::string_view item : items_of(text)) {
    if (item != "parameters" && item != "optimizer") {
      auto refusal = refuse_choice(k, item == "weights" ? "parameters" : item);
      refusal.nearest = item == "weights" ? "parameters" : refusal.nearest;
      return refusal;
    }
    (item == "parameters" ? parameters : optimizer) = true;
  }
  r->trainer.offload_parameters = parameters;
  r->trainer.offload_optimizer = optimizer;
  return {};
}

std::string get_liger(const Job&, const Role* r) {
  const Liger& fused = r->trainer.liger;
  std::vector<std::string_view> names;
  if (fused.rope) names.emplace_back("rope");
  if (fused.rms_norm) names.emplace_back("rms_norm");
  if (fused.swiglu) names.emplace_back("swiglu");
  return fmt::format("[{}]", fmt::join(names, ", "));
}
/// "[rope, rms_norm]", "swiglu", "[]", "none".
Refusal set_liger(const Knob& k, Job&, Role* r, std::string_view text) {
  Liger fused;
  fused.version = r->trainer.liger.version;
  for (const std::string_view item : items_of(text)) {
    if (item == "rope")
      fused.rope = true;
    else if (item == "rms_norm")
      fused.rms_norm = true;
    else if (item == "swiglu")
      fused.swiglu = true;
    else
      return refuse_choice(k, item);
  }
  r->trainer.liger = fused;
  return {};
}
std::string get_output(const Job&, const Role* r) { return r->trainer.output ? std::string(name(*r->trainer.output)) : "none"; }
Refusal set_output(const Knob& k, Job&, Role* r, std::string_view text) {
  if (std::find(k.choices.begin(), k.choices.end(), text) == k.choices.end()) return refuse_choice(k, text);
  r->trainer.output.reset();
  if (text != "none") r->trainer.output = parse<DType>(text);
  return {};
}

std::string get_foak(const Job&, const Role* r) {
  const Foak& fused = r->trainer.foak;
  std::vector<std::string_view> names;
  if (fused.rope) names.emplace_back("rope");
  if (fused.rms_norm) names.emplace_back("rms_norm");
  if (fused.lora) names.emplace_back("lora");
  return fmt::format("[{}]", fmt::join(names, ", "));
}
Refusal set_foak(const Knob& k, Job&, Role* r, std::string_view text) {
  Foak fused;
  for (const std::string_view item : items_of(text)) {
    if (item == "rope")
      fused.rope = true;
    else if (item == "rms_norm")
      fused.rms_norm = true;
    else if (item == "lora")
      fused.lora = true;
    else
      return refuse_choice(k, item);
  }
  r->trainer.foak = fused;
  return {};
}
std::string get_liger_version(const Job&, const Role* r) {
  return r->trainer.liger.version.empty() ? "newest" : r->trainer.liger.version;
}
Refusal set_liger_version(const Knob&, Job&, Role* r, std::string_view text) {
  if (text == "newest") return r->trainer.liger.version.clear(), Refusal{};
  if (!is_version(text)) return {"a release of Liger-Kernel such as 0.8.2, or newest", {}, {}};
  r->trainer.liger.version = text;
  return {};
}

std::string get_transformers(const Job&, const Role* r) {
  return r->trainer.transformers_version.empty() ? "newest" : r->trainer.transformers_version;
}
Refusal set_transformers(const Knob&, Job&, Role* r, std::string_view text) {
  if (text == "newest") return r->trainer.transformers_version.clear(), Refusal{};
  if (!is_version(text)) return {"a release of transformers such as 4.46.3, or newest", {}, {}};
  r->trainer.transformers_version = text;
  return {};
}
std::string get_bitsandbytes(const Job&, const Role* r) {
  const std::string& version = r->trainer.lora.base.version;
  return version.empty() ? "newest" : version;
}
Refusal set_bitsandbytes(const Knob&, Job&, Role* r, std::string_view text) {
  if (text == "newest") return r->trainer.lora.base.version.clear(), Refusal{};
  if (!is_version(text)) return {"a release of bitsandbytes such as 0.49.2, or newest", {}, {}};
  r->trainer.lora.base.version = text;
  return {};
}

std::string get_dropout(const Job&, const Role* r) { return number_text(r->trainer.lora.dropout); }

std::string get_weight_decay(const Job&, const Role* r) {
  return r->trainer.weight_decay < 0 ? "auto" : number_text(r->trainer.weight_decay);
}
Refusal set_weight_decay(const Knob& k, Job&, Role* r, std::string_view text) {
  if (text == k.zero) return r->trainer.weight_decay = -1, Refusal{};
  return check_number(k, text, r->trainer.weight_decay);
}

std::string get_reference_model(const Job&, const Role* r) {
  return r->trainer.reference_model.empty() ? "none" : r->trainer.reference_model;
}
std::string get_reference_format(const Job&, const Role* r) {
  return r->trainer.reference_format ? std::string(name(*r->trainer.reference_format)) : "none";
}
Refusal set_reference_format(const Knob& k, Job&, Role* r, std::string_view text) {
  if (std::find(k.choices.begin(), k.choices.end(), text) == k.choices.end()) return refuse_choice(k, text);
  r->trainer.reference_format.reset();
  if (text != "none") r->trainer.reference_format = parse<DType>(text);
  return {};
}
Refusal set_reference_model(const Knob&, Job&, Role* r, std::string_view text) {
  constexpr std::size_t kLongest = 4096;
  if (text.empty() || text.size() > kLongest) return {"a model's name, hub id, directory or config.json, or none", {}, {}};
  const std::string name(text == "none" ? std::string_view() : text);
  if (r->trainer.reference_model != name) r->trainer.other = {};
  r->trainer.reference_model = name;
  return {};
}

std::vector<std::string> supported_heads() {
  auto out = spellings<LossHead>();
  std::erase_if(out, [](const std::string& head) { return !unsupported_value("head", head).empty(); });
  return out;
}

}  // namespace

namespace {

/// Those of adapters' targets stand behind their rank.
std::vector<Knob> with_adapter_rows(std::vector<Knob> rows) {
  const auto rank = std::find_if(rows.begin(), rows.end(), [](const Knob& k) { return k.key == "lora.rank"; });
  std::vector<Knob> beside = adapter_rows();
  rows.insert(std::next(rank), beside.begin(), beside.end());
  return rows;
}

}  // namespace

std::vector<Knob> trainer_rows() {
  using enum KnobType;
  using enum Effect;
  const auto of = KnobOf::trains, learner = KnobOf::learns;
  return with_adapter_rows({
      saves(within(row("tokens_per_micro_batch", of, count, knob::count<&Trainer::tokens_per_micro_batch>(), speed,
                       "packed tokens of a data-parallel rank in one micro-batch, before context parallelism divides them"),
                   kTokenLimit, "tokens"),
            "smaller micro-batches: fewer activations and logits; more micro-batches, so a longer step"),
      saves(zero_is(
                within(row("logprob_tokens_per_micro_batch", of, count, count_or_auto<&Trainer::logprob_tokens_per_micro_batch>(),
                           speed, "the same in forward-only passes; auto: tokens_per_micro_batch"),
                       kTokenLimit, "tokens"),
                "auto"),
            "smaller forward-only micro-batches: fewer logits at once; a longer log-prob pass"),
      row("log_prob_pass", of, flag, knob::flag<&Trainer::log_prob_pass>(), semantics,
          "a step has a pass without gradients for the log-probs; false: they are those of the training pass, or of another "
          "role"),
      within(row("empty_cache_below", of, KnobType::bytes, knob::bytes<&Trainer::empty_cache_below>(), speed,
                 "where less of the GPU is free, the loop empties the allocator's cache before every collective, which a note "
                 "tells; 0: never"),
             kMemoryLimit),
      zero_is(within(row("sequence_tokens", of, count, count_or_auto<&Trainer::sequence_tokens>(), semantics,
                         "longest sequence; with sequences_per_micro_batch the length to which all are padded"),
                     kTokenLimit, "tokens"),
              "auto"),
      saves(zero_is(within(row("sequences_per_micro_batch", of, count, count_or_auto<&Trainer::sequences_per_micro_batch>(),
                               speed, "padded sequences of a rank in one micro-batch; auto: sequences are packed"),
                           kSequenceLimit, "sequences"),
                    "auto"),
            "fewer sequences at once: fewer activations and logits; more micro-batches, so a longer step"),
      zero_is(within(row("micro_batches", of, count, count_or_auto<&Trainer::micro_batches>(), semantics,
                         "micro-batches of a rank in one step; auto: from the batch"),
                     kMicroBatchLimit, "micro-batches"),
              "auto"),
      one_of(
          saves(
              row("recompute", of, choice, knob::choice<&Trainer::recompute>(), speed,
                  "full: every layer keeps only its input and is computed again in the backward pass; selective: "
                  "torchtitan's and Archon's choice by operator, which keeps attention's result and every second matrix product"),
              "keeps only the input of each layer; the backward pass computes the layer again (about a third more compute)"),
          spellings<Recompute>()),
      row("reentrant", of, flag, knob::flag<&Trainer::reentrant>(), speed, "the checkpoint's use_reentrant"),
      row("checkpoint_units", learner, flag, knob::flag<&Trainer::checkpoint_units>(), free,
          "FSDP1: a checkpoint stands around the call of a unit, as transformers' Trainer had it up to 4.51; false: inside of "
          "it"),
      within(row("recompute_every", of, count, knob::count<&Trainer::recompute_every>(), speed,
                 "recompute full: one layer of so many is checkpointed; transformers takes the first of them (every_n_layers), "
                 "torchtitan and Archon the last (selective_ac_option)"),
             {1, kLayerLimit.most}, "layers"),
      one_of(row("kernels", of, choice, knob::choice<&Trainer::kernels>(), speed,
                 "implementation of the operators; litgpt: LitGPT from 0.4.6 on, litgpt_0_4_5: up to then; torchtune_packed: "
                 "with packed samples; archon: AReaL's Archon, as engine archon has it"),
             spellings<Kernels>()),
      one_of(row("experts", of, choice, knob::choice<&Trainer::experts>(), speed,
                 "transformers' experts_implementation; auto: grouped_mm, and the loop over experts up to release 4. The loop is "
                 "described with tokens spread evenly over the experts"),
             spellings<Experts>()),
      one_of(saves(row("linear_attention", of, choice, knob::choice<&Trainer::linear_attention>(), speed,
                       "what runs the gated delta rule of transformers' layers (Qwen3-Next, Qwen3.5), which takes what is "
                       "installed: torch: neither package; fla: flash-linear-attention; fla_conv: causal-conv1d, too"),
                   "the kernels keep neither a chunk's matrices nor its states for the backward pass"),
             spellings<LinearAttention>()),
      one_of(saves(row("liger", of, items, {get_liger, set_liger}, speed,
                       "operators of Liger-Kernel in the layers: [rope, rms_norm, swiglu]; its losses are heads"),
                   "fused operators keep fewer tensors for the backward pass"),
             {"rope", "rms_norm", "swiglu"}),
      one_of(saves(row("foak", of, items, {get_foak, set_foak}, speed,
                       "operators of fms-acceleration in the layers: [rope, rms_norm, lora]; its loss is a head"),
                   "fused operators keep fewer tensors for the backward pass"),
             {"rope", "rms_norm", "lora"}),
      row("transformers", of, text, {get_transformers, set_transformers}, semantics,
          "release of transformers whose loss and SDPA call hf_* are: newest, or such as 4.46.3"),
      row("liger_version", of, text, {get_liger_version, set_liger_version}, semantics,
          "release of Liger-Kernel: newest, or such as 0.5.10"),
      one_of(saves(row("precision.storage", of, choice, knob::choice<&Trainer::storage>(), numerics,
                       "format in which parameters, gradients and optimizer states lie between steps"),
                   "halves parameters, gradients and optimizer states; small updates are lost to rounding"),
             {"fp32", "bf16", "fp16", "float32", "bfloat16", "float16"}),
      one_of(row("precision.compute", of, choice, knob::choice<&Trainer::compute>(), numerics,
                 "format of the forward and backward pass"),
             {"fp32", "bf16", "fp16", "float32", "bfloat16", "float16"}),
      one_of(saves(row("precision.reduce", of, choice, knob::choice<&Trainer::reduce>(), numerics,
                       "format of the gradients while they are summed over the ranks"),
                   "halves the buffers of the gradient reduction; sums are rounded"),
             {"fp32", "bf16", "fp16", "float32", "bfloat16", "float16"}),
      row("precision.cast_parameters", of, flag, knob::flag<&Trainer::cast_parameters>(), numerics,
          "FSDP's policy names a param_dtype, which is precision.compute; false: every parameter computes as it is stored"),
      row("precision.cast_gradients", of, flag, knob::flag<&Trainer::cast_gradients>(), numerics,
          "FSDP's policy names a reduce_dtype, which is precision.reduce; false: gradients are reduced as they come"),
      row("precision.cast_inputs", of, flag, knob::flag<&Trainer::cast_inputs>(), numerics,
          "FSDP2, cast_forward_inputs: a unit's arguments are cast to its param_dtype"),
      one_of(row("precision.output", of, choice, {get_output, set_output}, numerics,
                 "FSDP2, output_dtype: what a unit returns is cast to it; none: it stays as it comes"),
             {"none", "fp32", "bf16", "fp16", "float32", "bfloat16", "float16"}),
      one_of(row("precision.autocast", of, choice, knob::choice<&Trainer::autocast_format>(), numerics,
                 "with autocast: its format. fp16 has kernels that bf16 has not: of softmax with a result in fp32"),
             {"bf16", "fp16", "bfloat16", "float16"}),
      row("autocast", of, flag, knob::flag<&Trainer::autocast>(), numerics, "torch.autocast around the forward pass"),
      one_of(row("optimizer", learner, choice, knob::choice<&Trainer::optimizer>(), semantics, "optimizer"),
             spellings<OptimizerKind>()),
      one_of(saves(row("optimizer_form", learner, choice, knob::choice<&Trainer::optimizer_form>(), speed,
                       "torch.optim's implementation: foreach, fused, or a loop over the parameters"),
                   "the fused step makes no temporary copies"),
             spellings<OptimizerForm>()),
      within(row("optimizer_rank", learner, count, knob::count<&Trainer::optimizer_rank>(), semantics,
                 "apollo_adamw: rank of the projections of the layers' matrices"),
             kAdapterRankLimit),
      zero_is(between(row("weight_decay", learner, number, {get_weight_decay, set_weight_decay}, semantics,
                          "factor of the weight decay, which Adam and SGD add to copies of the gradients; auto: what the "
                          "optimizer's class has, 0.01 of AdamW, 0 of Adam and SGD"),
                      0, 1),
              "auto"),
      row("nesterov", learner, flag, knob::flag<&Trainer::nesterov>(), semantics, "sgd_momentum: Nesterov's momentum"),
      row("amsgrad", learner, flag, knob::flag<&Trainer::amsgrad>(), semantics, "Adam and AdamW: amsgrad, a third state"),
      row("clip", learner, flag, knob::flag<&Trainer::clip>(), semantics, "gradients are clipped by their norm"),
      one_of(
          row("lora.kind", learner, choice, knob::choice<&Lora::kind>(), semantics,
              "what the adapters are: lora, peft's vera or ia3, LitGPT's adapter (prefixes with gates) or adapter_v2 (factors, "
              "offsets and norms too)"),
          spellings<AdapterKind>()),
      zero_is(within(row("lora.rank", learner, count, {none_or<&Lora::rank>, knob::count<&Lora::rank>().set}, semantics,
                         "rank of the adapters (tokens of LitGPT's prefixes; 1 for ia3); everything else is frozen. none: all "
                         "parameters are trained"),
                     kAdapterRankLimit),
              "none"),
      within(row("lora.alpha", learner, count, knob::count<&Lora::alpha>(), semantics, "the adapters' factor is alpha / rank"),
             {1, pow2(20)}),
      between(row("lora.dropout", learner, number, {get_dropout, number_or_auto<&Lora::dropout>().set}, semantics,
                  "rate of the dropout in front of the adapters"),
              0, 0.99),
      one_of(row("lora.format", learner, choice, knob::choice<&Lora::format>(), numerics,
                 "format of the adapters, their gradients and states: fp32, or precision.storage like the frozen parameters"),
             spellings<AdapterFormat>()),
      one_of(row("lora.scope", learner, choice, knob::choice<&Lora::scope>(), semantics,
                 "Relax, of a model with a vision tower: all, which adapts modules of these names in the tower and its mergers, "
                 "too, or language"),
             spellings<AdapterScope>()),
      row("lora.masked_gates", learner, flag, knob::flag<&Lora::masked_gates>(), semantics,
          "Relax: what an adapter of linear attention (in_proj) gives to the gates is set to zero in place "
          "(--lora-adapter-mode)"),
      within(row("lora.frozen_copies", learner, count, knob::count<&Lora::frozen_copies>(), semantics,
                 "adapters of the same size that are not trained: AgileRL's reference policy"),
             {0, 8}),
      row("lora.dora", learner, flag, knob::flag<&Lora::dora>(), semantics,
          "DoRA: the adapters' product is scaled by a trained magnitude for each row"),
      row("lora.own_units", learner, flag, knob::flag<&Lora::own_units>(), speed,
          "FSDP1: every adapter is a unit of its own (peft's fsdp_auto_wrap_policy); false: a part of its layer's flat "
          "parameter, of "
          "which all gets gradients"),
      saves(row("lora.layered_summon", learner, flag, knob::flag<&Lora::layered_summon>(), speed,
                "FSDP1, verl's weight update: layers are gathered one after another, not all at once, to read their adapters"),
            "gathers one layer at a time for the weight update of adapters"),
      one_of(
          saves(row("lora.base", learner, choice, knob::choice<&QuantisedBase::format>(), numerics,
                    "linear layers of the frozen base: full, as bitsandbytes packs them (QLoRA: nf4; LLM.int8: int8), or gptq"),
                "packs the frozen matrices; each is unpacked for its products"),
          spellings<BaseFormat>()),
      row("lora.base_double_quant", learner, flag, knob::flag<&QuantisedBase::double_quant>(), numerics,
          "4 bits: the scales of blocks are quantised too (bnb_4bit_use_double_quant)"),
      one_of(row("lora.base_compute", learner, choice, knob::choice<&QuantisedBase::compute>(), numerics,
                 "4 bits: format of the matrix products (bnb_4bit_compute_dtype)"),
             {"fp32", "bf16", "fp16", "float32", "bfloat16", "float16"}),
      row("lora.prepare_kbit", learner, flag, knob::flag<&QuantisedBase::prepare_kbit>(), numerics,
          "peft's prepare_model_for_kbit_training: embeddings, norms and output layer are cast to fp32"),
      row("lora.casts_heads", learner, flag, knob::flag<&QuantisedBase::casts_heads>(), numerics,
          "with lora.prepare_kbit: TRL casts embeddings and output layer to bf16 again (peft_module_casting_to_bf16)"),
      row("lora.base_whole", learner, flag, knob::flag<&QuantisedBase::whole>(), speed,
          "FSDP2, 4 bits: packed matrices are whole on every rank, as accelerate has it where bnb_4bit_quant_storage is "
          "uint8, its default; false: they are stored in the compute format and sharded"),
      within(row("lora.base_bits", learner, count, knob::count<&QuantisedBase::bits>(), numerics,
                 "gptq: bits of an element: 2, 4 or 8"),
             {2, 8}),
      zero_is(within(row("lora.base_group", learner, count,
                         {none_or<&QuantisedBase::group>, knob::count<&QuantisedBase::group>().set}, numerics,
                         "gptq: inputs that share a scale; none: all of a layer"),
                     kGroupLimit),
              "none"),
      within(row("lora.base_outliers", learner, count, knob::count<&QuantisedBase::outliers>(), semantics,
                 "int8: columns of a linear layer's input that have an outlier, a number of 6 or more: they are data"),
             {0, kGroupLimit.most}),
      row("lora.bitsandbytes", learner, text, {get_bitsandbytes, set_bitsandbytes}, semantics,
          "release of bitsandbytes that packs the base: 0.49.2, or newest"),
      one_of(saves(row("offload", of, items, {get_offload, set_offload}, speed,
                       "what lies in host memory while other phases run: [parameters, optimizer]"),
                   "moves states to the host between phases; each phase begins and ends with a copy"),
             {"parameters", "optimizer"}),
      saves(row("cpu_offload_policy", of, flag, knob::flag<&Trainer::cpu_offload_policy>(), speed,
                "FSDP2's CPUOffloadPolicy, FSDP1's CPUOffload: parameters, gradients and optimizer states live on the host"),
            "keeps only gathered layers on the GPU; every layer crosses the bus and the optimizer runs on the CPU"),
      saves(row("reshard_after_forward", of, flag, knob::flag<&Trainer::reshard_after_forward>(), speed,
                "the layers' gathered parameters are freed after the forward pass"),
            "frees gathered parameters after the forward pass; the backward pass gathers them again"),
      row("root_reshard", of, flag, knob::flag<&Trainer::root_reshard>(), speed, "the same for the root unit"),
      zero_is(within(row("reshard_ranks", of, count, count_or_auto<&Trainer::reshard_ranks>(), speed,
                         "what is resharded after the forward pass is split over so many ranks until backward; auto: over all"),
                     kGpuLimit, "ranks"),
              "auto"),
      row("forward_prefetch", of, flag, knob::flag<&Trainer::forward_prefetch>(), speed,
          "every layer gathers the next one's parameters: set_modules_to_forward_prefetch, FSDP1's forward_prefetch"),
      one_of(
          saves(row("backward_prefetch", learner, choice, knob::choice<&Trainer::backward_prefetch>(), speed,
                    "FSDP1: when the backward pass gathers the next unit: before this one computes (pre), behind it (post), or "
                    "when it is its turn (none)"),
                "one unit less is gathered in the backward pass, which waits for every gather"),
          spellings<BackwardPrefetch>()),
      saves(row("limit_all_gathers", learner, flag, knob::flag<&Trainer::limit_all_gathers>(), speed,
                "FSDP1: the CPU waits for the GPU before it gathers a third unit; without, freed units wait as long as a pass "
                "takes"),
            "the CPU waits for the GPU in front of a gather, so that freed units can be used again"),
      row("use_orig_params", learner, flag, knob::flag<&Trainer::use_orig_params>(), free,
          "FSDP1: the optimizer sees parameters, not flat ones; zero_grad then frees no gradients"),
      row("wrap_embedding", of, flag, knob::flag<&Trainer::wrap_embedding>(), speed, "the embedding is an FSDP unit of its own"),
      row("wrap_head", of, flag, knob::flag<&Trainer::wrap_head>(), speed, "the output layer is an FSDP unit of its own"),
      row("wrap_norm", of, flag, knob::flag<&Trainer::wrap_norm>(), speed,
          "with wrap_head: the final norm shares the unit of the output layer"),
      row("reshard_last", of, flag, knob::flag<&Trainer::reshard_last>(), speed,
          "false: what is last (the output layer's unit, or else the last layer) stays gathered from forward to backward"),
      saves(row("gradient_sync_every_micro_batch", learner, flag, knob::flag<&Trainer::gradient_sync_every_micro_batch>(), speed,
                "gradients are reduced in every micro-batch, not only in the last"),
            "keeps only the shard of the gradients between micro-batches; more communication"),
      row("keep_gradients", learner, flag, knob::flag<&Trainer::keep_gradients>(), free,
          "zero_grad(set_to_none=False): gradients stay from step to step, filled with zeros"),
      row("step_every_micro_batch", learner, flag, knob::flag<&Trainer::step_every_micro_batch>(), semantics,
          "an optimizer step behind each micro-batch: no gradients are accumulated"),
      saves(row("gradient_as_bucket_view", learner, flag, knob::flag<&Trainer::gradient_as_bucket_view>(), free,
                "DDP: gradients are views of the buckets of the reduction"),
            "gradients lie in the buckets of the reduction, not beside them"),
      zero_is(within(row("bucket_cap_mb", learner, count, count_or_auto<&Trainer::bucket_cap_mb>(), speed,
                         "DDP: MiB of gradients that are reduced at once; auto: 25, the first time 1"),
                     kBucketLimit, "MiB"),
              "auto"),
      row("static_graph", learner, flag, knob::flag<&Trainer::static_graph>(), free, "DDP: the graph is the same in every step"),
      row("find_unused_parameters", learner, flag, knob::flag<&Trainer::find_unused_parameters>(), speed,
          "DDP: looks for parameters without a gradient; buckets are not cut anew in the order of the gradients"),
      within(
          row("replicas", of, count, knob::count<&Trainer::replicas>(), speed,
              "HSDP: shard groups that each hold all parameters; 1: the parameters are split over all ranks; FSDP1: as many as "
              "ranks are NO_SHARD"),
          kGpuLimit, "groups"),
      within(saves(row("zero.stage", of, count, knob::count<&Zero::stage>(), speed,
                       "DeepSpeed's ZeRO: 1 splits optimizer states, 2 gradients too, 3 parameters too"),
                   "splits more over the ranks; more communication"),
             {1, 3}),
      saves(within(row("zero.reduce_bucket", learner, count, knob::count<&Zero::reduce_bucket>(), speed,
                       "reduce_bucket_size: elements of gradients that are reduced at once"),
                   kZeroBucketLimit, "elements"),
            "a smaller bucket of gradients; more, smaller reductions"),
      within(row("zero.allgather_bucket", of, count, knob::count<&Zero::allgather_bucket>(), speed,
                 "allgather_bucket_size: updated parameters that stages 1 and 2 gather at once, in place"),
             kZeroBucketLimit, "elements"),
      saves(within(row("zero.prefetch_bucket", of, count, knob::count<&Zero::prefetch_bucket>(), speed,
                       "stage3_prefetch_bucket_size: elements of parameters that every module gathers ahead"),
                   {0, kZeroBucketLimit.most}, "elements"),
            "fewer parameters are gathered ahead; modules wait for their own"),
      within(row("zero.persistence_threshold", of, count, knob::count<&Zero::persistence_threshold>(), speed,
                 "stage3_param_persistence_threshold: parameters of at most so many elements stay gathered"),
             {0, kZeroBucketLimit.most}, "elements"),
      saves(within(row("zero.max_live", of, count, knob::count<&Zero::max_live>(), speed,
                       "stage3_max_live_parameters: nothing is gathered ahead above so many gathered elements"),
                   {0, kZeroBucketLimit.most}, "elements"),
            "fewer parameters are gathered at once; modules wait for their own"),
      saves(within(row("zero.max_reuse_distance", of, count, knob::count<&Zero::max_reuse_distance>(), speed,
                       "stage3_max_reuse_distance: what is used again within so many elements of parameters stays gathered"),
                   {0, kZeroBucketLimit.most}, "elements"),
            "parameters go as soon as a module ends, and are gathered again"),
      saves(within(row("zero.sub_group", learner, count, knob::count<&Zero::sub_group>(), speed,
                       "sub_group_size: the optimizer's step goes through a rank's parameters in groups of so many elements"),
                   kZeroBucketLimit, "elements"),
            "a smaller part of the gradients is fp32 at once; a slightly longer step"),
      row("zero.overlap_comm", learner, flag, knob::flag<&Zero::overlap_comm>(), speed,
          "stages 1 and 2: overlap_comm, gradients are reduced from a second bucket while they are computed"),
      row("zero.contiguous_gradients", learner, flag, knob::flag<&Zero::contiguous_gradients>(), speed,
          "contiguous_gradients: gradients are copied into the bucket as they come"),
      saves(row("zero.offload_optimizer", learner, flag, knob::flag<&Zero::offload_optimizer>(), speed,
                "offload_optimizer to the CPU: masters, states and the step (DeepSpeedCPUAdam) are the host's"),
            "masters and states lie on the host, where the optimizer steps: slow"),
      saves(row("zero.offload_parameters", of, flag, knob::flag<&Zero::offload_parameters>(), speed,
                "stage 3: offload_param to the CPU, shards come when they are gathered"),
            "shards of parameters lie on the host; every gather crosses the bus"),
      one_of(
          row("zero.load", of, choice, knob::choice<&Zero::load>(), free,
              "stage 3: split: zero.Init splits every parameter as it is made; whole, whole_fp32: each GPU loads the whole model "
              "first"),
          spellings<ZeroLoad>()),
      saves(row("offload_checkpoints", learner, flag, knob::flag<&Trainer::offload_checkpoints>(), speed,
                "inputs of checkpointed layers lie on the host until backward: transformers' offload in pinned memory, "
                "ArcticTraining's "
                "activation_checkpoint_cpu_offload"),
            "inputs of layers lie on the host until the backward pass; two copies across the bus"),
      one_of(
          row("offload_activations", learner, choice, knob::choice<&Trainer::offload_activations>(), speed,
              "what backward needs lies on the host until then: verl: its enable_activation_offload, layer by layer; "
              "save_on_cpu, save_on_cpu_pinned: torch.autograd.graph.save_on_cpu around the model's forward pass; "
              "offload_wrapper: torch's, around each layer; trl, torchtune: their OffloadActivations, with the last five on the "
              "device"),
          spellings<OffloadActivations>()),
      saves(row("tiled_mlp", of, flag, knob::flag<&Trainer::tiled_mlp>(), speed,
                "DeepSpeed's TiledMLP as ArcticTraining calls it: feed-forward blocks run over about `hidden` tokens at a time, "
                "and "
                "once more in backward"),
            "the feed-forward block's wide tensors exist for a few thousand tokens at a time"),
      saves(row("memory_efficient_load", of, flag, knob::flag<&Trainer::memory_efficient_load>(), free,
                "AReaL: rank 0 loads the model on the host and sends it; Megatron-FSDP: it is made on the meta device "
                "(--init-model-with-meta-device); without it every GPU has the whole model first"),
            "loads the model on the host of rank 0; the start takes longer"),
      zero_is(
          within(row("vision.images", of, count, {none_or<&Vision::images>, knob::count<&Vision::images>().set}, semantics,
                     "images of a sequence, of a packed micro-batch where sequences_per_micro_batch is auto; for a model with a "
                     "vision tower"),
                 kImageLimit, "images"),
          "none"),
      row("vision.fill", of, flag, knob::flag<&Vision::fill>(), semantics,
          "vision.images are those of a rank's batch, and a packed micro-batch has as many of them as its tokens hold"),
      zero_is(within(row("vision.held", of, count, {none_or<&Vision::held>, knob::count<&Vision::held>().set}, semantics,
                         "images whose pixels lie on the device while a phase runs: those of other micro-batches, and copies"),
                     kHeldImageLimit, "images"),
              "none"),
      within(row("vision.height", of, count, knob::count<&Vision::height>(), semantics,
                 "height of every image as the processor hands it on"),
             kPixelLimit, "pixels"),
      within(row("vision.width", of, count, knob::count<&Vision::width>(), semantics,
                 "width of every image as the processor hands it on"),
             kPixelLimit, "pixels"),
      one_of(saves(row("vision.train", learner, choice, knob::choice<&Vision::train>(), semantics,
                       "what of the vision tower is trained: all, the projector (merger), or none"),
                   "a frozen tower keeps nothing for backward and has neither gradients nor states"),
             spellings<TowerTraining>()),
      one_of(row("head", of, choice, knob::choice<&Trainer::head>(), numerics, "what follows the last hidden state"),
             supported_heads()),
      one_of(row("reference", learner, choice, knob::choice<&Trainer::reference>(), semantics,
                 "forward pass of a reference model between forward and backward: of a second model on the same GPUs, of the "
                 "policy with its adapters_off, or none (its log-probs come with the batch)"),
             spellings<ReferencePass>()),
      row("reference_model", learner, text, {get_reference_model, set_reference_model}, semantics,
          "with reference: model, a name, folder or config.json as for model: a teacher's; none: the policy's own"),
      one_of(saves(row("reference_format", learner, choice, {get_reference_format, set_reference_format}, numerics,
                       "with reference: model, the format of its parameters; none: the policy's"),
                   "a reference in 16 bits has half the bytes, and its logits too; its log-probs are rounded"),
             {"none", "bf16", "fp16", "fp32"}),
      zero_is(within(row("logits_to_keep", of, count, count_or_auto<&Trainer::logits_to_keep>(), semantics,
                         "only so many tokens reach the output layer; auto: all"),
                     kTokenLimit, "tokens"),
              "auto"),
      row("padding_mask", of, flag, knob::flag<&Trainer::padding_mask>(), semantics, "batches carry a 2-D attention mask"),
      row("keep_outputs", of, flag, knob::flag<&Trainer::keep_outputs>(), semantics,
          "the training loop keeps the model's output through the backward pass; LitGPT's does so in any case, and with this "
          "through the forward pass of a next batch as long as this one; torchtitan's up to June 2024 kept fp32 logits so"),
      saves(row("kv_cache", of, flag, knob::flag<&Trainer::kv_cache>(), free,
                "a generator's use_cache: keys and values of all layers stay from token to token; false: every token is a pass "
                "over all tokens so far"),
            "keys and values stay, so that a token is a pass by itself; without them it is one over all tokens so far"),
      row("sdpa_math", of, flag, knob::flag<&Trainer::sdpa_math>(), numerics, "SDPA is forced to its math kernel"),
      one_of(row("rms_norm", of, choice, knob::choice<&Trainer::rms_norm>(), speed,
                 "torchtitan's RMSNorm: fused (nn.RMSNorm from PyTorch 2.9 on) or by_hand (written out in fp32)"),
             spellings<RmsNorm>()),
      row("tree_training", of, flag, knob::flag<&Trainer::tree_training>(), speed,
          "AReaL's Archon: sequences share the tokens that they begin with, and attention makes scores of all tokens of a "
          "micro-batch"),
      row("repeat_kv", of, flag, knob::flag<&Trainer::repeat_kv>(), speed,
          "torchtitan up to 0.2.1: keys and values are copied to all heads in front of attention"),
      row("compile", of, flag, knob::flag<&Trainer::compile>(), speed,
          "torchtitan, AReaL's Archon: every TransformerBlock under torch.compile, as one graph with its checkpoint inside"),
      one_of(row("float8", of, choice, knob::choice<&Trainer::float8>(), numerics,
                 "torchtitan: matrices of every TransformerBlock multiply in 8 bits (torchao), with a scale for each tensor "
                 "(tensorwise) or for each row and column (rowwise); those of Archon's blocks, with one for 128 numbers "
                 "(blockwise)"),
             spellings<Float8>()),
      row("float8_all_gather", of, flag, knob::flag<&Trainer::float8_all_gather>(), speed,
          "FSDP2 gathers those matrices in 8 bits (tensorwise alone)"),
      row("kernel_internals", of, flag, knob::flag<&Trainer::kernel_internals>(), semantics,
          "buffers inside fused kernels are counted (false: to compare with tools that cannot see them)"),
  });
}

}  // namespace oomplan
