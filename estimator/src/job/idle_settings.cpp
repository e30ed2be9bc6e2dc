#include "job/idle_settings.hpp"

#include <algorithm>

#include <fmt/ranges.h>

#include "catalog/architecture.hpp"
#include "job/follow.hpp"
#include "job/head_rules.hpp"
#include "job/kernel_sets.hpp"
#include "job/knobs.hpp"
#include "job/vision_pass.hpp"

namespace oomplan {
namespace {

/// FSDP1's root has it, and the optimizer zeros in the place of its gradients (training/flat_units.cpp).
bool trains_idle_tower(const Role& r) {
  const bool tower = r.architecture != nullptr && !r.architecture->tower.kind.empty();
  return r.engine == EngineKind::fsdp1 && tower && r.trainer.lora.rank == 0;
}

template <class Found>
bool any_layer(const Role& r, Found&& found) {
  if (r.architecture == nullptr) return true;  // not known: nothing is said
  const auto& runs = r.architecture->runs;
  return std::any_of(runs.begin(), runs.end(), [&](const LayerRun& run) { return found(run.layer); });
}
bool has_experts(const Role& r) {
  return any_layer(r, [](const Layer& l) { return l.feed_forward.experts > 0; });
}
/// What stands between a half of a layer and the sum behind it.
bool drops_or_adds_bias(const Role& r) {
  const bool biases = any_layer(
      r, [](const Layer& l) { return l.mixer.out_bias || (l.feed_forward.kind != FeedForwardKind::moe && l.feed_forward.bias); });
  return biases || r.architecture->hidden_dropout > 0;
}
bool has_windows(const Role& r) {
  return any_layer(r, [](const Layer& l) { return l.mixer.window > 0; });
}
bool hears(const Role& r) { return r.architecture == nullptr || r.architecture->tower.audio.layers > 0; }
bool has_states(const Role& r) {
  return any_layer(r, [](const Layer& l) { return l.mixer.kind != MixerKind::attention && l.mixer.kind != MixerKind::mla; });
}
bool runs_blocks(const Role& r) { return r.trainer.megatron.mtp_layers > 0 && r.trainer.megatron.mtp_runs; }
bool learns(const Role& r) { return r.kind == RoleKind::actor || r.kind == RoleKind::critic || r.kind == RoleKind::trainer; }
/// What releases of Liger differ in (layers/liger_code.cpp): the gradient of a norm's weight, and its fused head.
bool by_release_of_liger(const Trainer& t) {
  return t.head == LossHead::liger_fused_ce || (t.liger.rms_norm && t.lora.rank == 0);
}
bool adam(const Trainer& t) { return t.optimizer == OptimizerKind::adamw || t.optimizer == OptimizerKind::adam; }
bool adam_in_part(const Trainer& t) { return adam(t) || t.optimizer == OptimizerKind::muon; }
bool adds_decay(const Trainer& t) { return element_by_element(t.optimizer) && t.optimizer != OptimizerKind::adamw; }
/// Of SGD the forms differ in what they make of weight decay and Nesterov's momentum.
bool has_forms(const Trainer& t) { return adam_in_part(t) || (adds_decay(t) && (t.weight_decay > 0 || t.nesterov)); }
bool has_policy(const Role& r) { return shards_by_fsdp2(r.engine) || r.engine == EngineKind::fsdp1; }
/// A server gets the weights that the actor has learnt.
bool updates(const Job& j) {
  return j.sync.by != SyncBy::none &&
         std::any_of(j.roles.begin(), j.roles.end(), [](const Role& r) { return r.kind == RoleKind::rollout; });
}
bool four_bits(const Trainer& t) { return t.lora.base.format == BaseFormat::nf4 || t.lora.base.format == BaseFormat::fp4; }
/// The processors of these towers make every image as large as the table of positions (job/vision_pass.cpp).
bool one_size(const Role& r) {
  if (r.architecture == nullptr) return false;
  const std::string& kind = r.architecture->tower.kind;
  return kind == "siglip" || kind == "internvl" || kind == "clip";
}
/// Images of the micro-batch lie on the device anyway.
bool holds_no_more(const Role& r) {
  return r.architecture != nullptr && !r.architecture->tower.kind.empty() &&
         held_pixels(r.trainer, r.engine, *r.architecture) == 0;
}
bool names_target(const Lora& l, std::string_view name) { return std::ranges::find(l.targets, name) != l.targets.end(); }
bool has_linear_attention(const Role& r) {
  return r.architecture != nullptr && std::ranges::any_of(r.architecture->runs, [](const LayerRun& run) {
           return run.layer.mixer.kind == MixerKind::gated_delta;
         });
}
bool tied(const Role& r) { return r.architecture != nullptr && r.architecture->tied; }

/// Why a knob changes nothing, and when. Several rows of one knob: the first that holds.
struct Row {
  std::string_view knob;  ///< with a dot at its end: all that begin so
  std::string_view why;
  bool (*idle)(const Job&, const Role&);
};

constexpr std::string_view kPadded = "sequences_per_micro_batch counts";
constexpr std::string_view kNoGradients = "a forward pass keeps nothing for backward";
constexpr std::string_view kNoPolicy = "it is of FSDP's policy: other engines compute with parameters as they are stored";
constexpr std::string_view kNothingAgain = "nothing is recomputed (recompute: none)";
constexpr std::string_view kNoAdapters = "there are no adapters (lora.rank: none)";
constexpr std::string_view kNoImages = "there are no images (vision.images: none)";
constexpr std::string_view kInMicroBatch = "a micro-batch has as many images";
constexpr std::string_view kOneSize = "its processor makes every image of one size";
constexpr std::string_view kStage3 = "it is of ZeRO stage 3";
constexpr std::string_view kStages12 = "it is of ZeRO stages 1 and 2";
constexpr std::string_view kForgets = "a pass without adapters makes DeepSpeed forget what it would gather ahead";
constexpr std::string_view kTitans = "it is torchtitan's (kernels: torchtitan)";
constexpr std::string_view kDense = "the model has no experts";
constexpr std::string_view kNoBlocks = "no blocks of multi-token prediction run (mtp_layers)";
constexpr std::string_view kStays = "gathered parameters stay until backward (reshard_after_forward: false)";
constexpr std::string_view kTied = "embedding and output layer are one parameter, which the root unit has";
constexpr std::string_view kOneMicroBatch = "a step has one micro-batch";
constexpr std::string_view kOneStage = "there is one pipeline stage";
constexpr std::string_view kNoSlots = "the server takes no adapters (lora.slots and lora.rank)";

constexpr Row kTrainers[] = {
    {"tokens_per_micro_batch", kPadded, [](const Job&, const Role& r) { return r.trainer.sequences_per_micro_batch > 0; }},
    {"logprob_tokens_per_micro_batch", "a trainer by itself has no forward-only passes",
     [](const Job& j, const Role&) { return j.kind == JobKind::sft; }},
    {"logprob_tokens_per_micro_batch", kPadded,
     [](const Job&, const Role& r) { return r.trainer.loop.pads_batches && r.trainer.sequences_per_micro_batch > 0; }},
    {"log_prob_pass", "a trainer by itself has no forward-only passes",
     [](const Job& j, const Role&) { return j.kind == JobKind::sft; }},
    {"log_prob_pass", "the role does nothing else", [](const Job&, const Role& r) { return !learns(r); }},
    {"empty_cache_below", "a note tells where it is so: no figure changes", [](const Job&, const Role&) { return true; }},
    {"micro_batches", "a forward pass leaves nothing to the next one", [](const Job&, const Role& r) { return !learns(r); }},
    {"recompute", kNoGradients, [](const Job&, const Role& r) { return !learns(r); }},
    {"reentrant", kNoGradients, [](const Job&, const Role& r) { return !learns(r); }},
    {"reentrant", "Megatron has checkpoints of its own",
     [](const Job&, const Role& r) { return r.engine == EngineKind::megatron; }},
    {"reentrant", kNothingAgain, [](const Job&, const Role& r) { return r.trainer.recompute == Recompute::none; }},
    {"experts", "they are those of transformers' models",
     [](const Job&, const Role& r) { return !of_transformers(r.trainer.kernels); }},
    {"experts", kDense, [](const Job&, const Role& r) { return !has_experts(r); }},
    {"linear_attention", "no layer of the model has a gated delta rule",
     [](const Job&, const Role& r) {
       return !any_layer(r, [](const Layer& l) { return l.mixer.kind == MixerKind::gated_delta; });
     }},
    {"transformers", "its models are not transformers' (kernels)",
     [](const Job&, const Role& r) { return !of_transformers(r.trainer.kernels); }},
    {"liger_version", "nothing of Liger is used in which its releases differ",
     [](const Job&, const Role& r) { return !by_release_of_liger(r.trainer); }},
    {"optimizer_rank", "it is APOLLO's (optimizer: apollo_adamw)",
     [](const Job&, const Role& r) { return r.trainer.optimizer != OptimizerKind::apollo_adamw; }},
    {"optimizer_form", "this optimizer has one form", [](const Job&, const Role& r) { return !has_forms(r.trainer); }},
    {"weight_decay", "this optimizer takes it off the parameters where they lie",
     [](const Job&, const Role& r) { return !adds_decay(r.trainer); }},
    {"weight_decay", "its fused step makes no copies",
     [](const Job&, const Role& r) { return r.trainer.optimizer_form == OptimizerForm::fused; }},
    {"nesterov", "it is of sgd_momentum",
     [](const Job&, const Role& r) { return r.trainer.optimizer != OptimizerKind::sgd_momentum; }},
    {"nesterov", "only the loop makes a sum of its own",
     [](const Job&, const Role& r) { return r.trainer.optimizer_form != OptimizerForm::loop; }},
    {"precision.cast_parameters", kNoPolicy, [](const Job&, const Role& r) { return !has_policy(r); }},
    {"precision.cast_gradients", kNoPolicy, [](const Job&, const Role& r) { return !has_policy(r); }},
    {"precision.cast_inputs", "it is of FSDP2's policy", [](const Job&, const Role& r) { return !shards_by_fsdp2(r.engine); }},
    {"precision.autocast", "nothing runs under autocast", [](const Job&, const Role& r) { return !r.trainer.autocast; }},
    {"precision.output", "it is of FSDP2's policy", [](const Job&, const Role& r) { return !shards_by_fsdp2(r.engine); }},
    {"precision.cast_inputs", "the policy names no param_dtype (precision.cast_parameters: false)",
     [](const Job&, const Role& r) { return !r.trainer.cast_parameters; }},
    {"amsgrad", "it is Adam's and AdamW's", [](const Job&, const Role& r) { return !adam_in_part(r.trainer); }},
    {"lora.", kNoAdapters, [](const Job&, const Role& r) { return r.trainer.lora.rank == 0; }},
    {"lora.scope", "the model has no vision tower",
     [](const Job&, const Role& r) { return r.architecture == nullptr || r.architecture->tower.kind.empty(); }},
    {"lora.masked_gates", "linear attention has no adapters (lora.targets: in_proj)",
     [](const Job&, const Role& r) { return !names_target(r.trainer.lora, "in_proj") || !has_linear_attention(r); }},
    {"lora.layered_summon", "no weight update gathers layers to read the adapters (training loop: verl; roles.rollout)",
     [](const Job& j, const Role& r) { return r.kind != RoleKind::actor || !r.trainer.loop.summons_adapters || !updates(j); }},
    {"lora.prepare_kbit", "the base is not quantised",
     [](const Job&, const Role& r) { return r.trainer.lora.base.format == BaseFormat::full; }},
    {"lora.base_double_quant", "the base is not in 4 bits", [](const Job&, const Role& r) { return !four_bits(r.trainer); }},
    {"lora.base_compute", "the base is not in 4 bits", [](const Job&, const Role& r) { return !four_bits(r.trainer); }},
    {"lora.base_bits", "the base is not GPTQ's",
     [](const Job&, const Role& r) { return r.trainer.lora.base.format != BaseFormat::gptq; }},
    {"lora.base_group", "the base is not GPTQ's",
     [](const Job&, const Role& r) { return r.trainer.lora.base.format != BaseFormat::gptq; }},
    {"lora.base_outliers", "the base is not in int8",
     [](const Job&, const Role& r) { return r.trainer.lora.base.format != BaseFormat::int8; }},
    {"lora.bitsandbytes", "bitsandbytes packs no base",
     [](const Job&, const Role& r) { return !four_bits(r.trainer) && r.trainer.lora.base.format != BaseFormat::int8; }},
    {"reshard_ranks", kStays, [](const Job&, const Role& r) { return !r.trainer.reshard_after_forward; }},
    {"reshard_last", kStays, [](const Job&, const Role& r) { return !r.trainer.reshard_after_forward; }},
    {"reshard_last", "it is FSDP2's", [](const Job&, const Role& r) { return r.engine == EngineKind::fsdp1; }},
    {"wrap_embedding", kTied, [](const Job&, const Role& r) { return tied(r); }},
    {"wrap_head", kTied, [](const Job&, const Role& r) { return tied(r); }},
    {"wrap_norm", kTied, [](const Job&, const Role& r) { return tied(r); }},
    {"wrap_norm", "the output layer is no unit (wrap_head: false)",
     [](const Job&, const Role& r) { return !r.trainer.wrap_head; }},
    {"gradient_sync_every_micro_batch", kOneMicroBatch, [](const Job&, const Role& r) { return r.trainer.micro_batches == 1; }},
    {"step_every_micro_batch", kOneMicroBatch, [](const Job&, const Role& r) { return r.trainer.micro_batches == 1; }},
    {"static_graph", "the graph is taken to be so without find_unused_parameters",
     [](const Job&, const Role& r) { return !r.trainer.find_unused_parameters; }},
    {"zero.prefetch_bucket", kStage3, [](const Job&, const Role& r) { return r.trainer.zero.stage < 3; }},
    {"zero.prefetch_bucket", kForgets,
     [](const Job&, const Role& r) { return r.trainer.reference == ReferencePass::adapters_off; }},
    {"zero.persistence_threshold", kStage3, [](const Job&, const Role& r) { return r.trainer.zero.stage < 3; }},
    {"zero.max_live", kStage3, [](const Job&, const Role& r) { return r.trainer.zero.stage < 3; }},
    {"zero.max_reuse_distance", kStage3, [](const Job&, const Role& r) { return r.trainer.zero.stage < 3; }},
    {"zero.max_reuse_distance", kForgets,
     [](const Job&, const Role& r) { return r.trainer.reference == ReferencePass::adapters_off; }},
    {"zero.sub_group", kStage3, [](const Job&, const Role& r) { return r.trainer.zero.stage < 3; }},
    {"zero.allgather_bucket", kStages12, [](const Job&, const Role& r) { return r.trainer.zero.stage == 3; }},
    {"zero.allgather_bucket", "updated parameters are gathered in place", [](const Job&, const Role&) { return true; }},
    {"zero.load", kStage3, [](const Job&, const Role& r) { return r.trainer.zero.stage < 3; }},
    {"zero.overlap_comm", kStages12, [](const Job&, const Role& r) { return r.trainer.zero.stage == 3; }},
    {"memory_efficient_load", "it is AReaL's and Megatron-FSDP's",
     [](const Job&, const Role& r) { return !r.trainer.loop.loads_on_gpu && r.engine != EngineKind::megatron; }},
    {"vision.height", kNoImages, [](const Job&, const Role& r) { return r.trainer.vision.images == 0; }},
    {"vision.width", kNoImages, [](const Job&, const Role& r) { return r.trainer.vision.images == 0; }},
    {"vision.fill", kNoImages, [](const Job&, const Role& r) { return r.trainer.vision.images == 0; }},
    {"vision.fill", kPadded, [](const Job&, const Role& r) { return r.trainer.sequences_per_micro_batch > 0; }},
    {"vision.held", kNoImages, [](const Job&, const Role& r) { return r.trainer.vision.images == 0; }},
    {"vision.held", kInMicroBatch, [](const Job&, const Role& r) { return holds_no_more(r); }},
    {"vision.train", kNoImages, [](const Job&, const Role& r) { return r.trainer.vision.images == 0 && !trains_idle_tower(r); }},
    {"vision.height", kOneSize, [](const Job&, const Role& r) { return one_size(r); }},
    {"vision.width", kOneSize, [](const Job&, const Role& r) { return one_size(r); }},
    {"keep_outputs", "its head makes no logits that could stay",
     [](const Job&, const Role& r) {
       const LossHead head = r.trainer.head;
       return head == LossHead::liger_fused_ce || head == LossHead::agilerl_fused || is_verl_fused(head);
     }},
    {"kv_cache", "it is a generator's", [](const Job&, const Role& r) { return r.kind != RoleKind::generator; }},
    {"sdpa_math", "attention is not SDPA's (kernels)",
     [](const Job&, const Role& r) { return r.trainer.kernels == Kernels::hf_flash || r.trainer.kernels == Kernels::hf_eager; }},
    {"rms_norm", kTitans, [](const Job&, const Role& r) { return r.trainer.kernels != Kernels::torchtitan; }},
    {"repeat_kv", kTitans, [](const Job&, const Role& r) { return r.trainer.kernels != Kernels::torchtitan; }},
    {"context_exchange", "there is no context parallelism",
     [](const Job&, const Role& r) { return r.trainer.layout.context == 1; }},
    {"sequence_parallel", "one rank has a sequence whole",
     [](const Job&, const Role& r) { return r.trainer.layout.tensor == 1; }},
    {"sequence_parallel_input_regather", "one rank has a sequence whole",
     [](const Job&, const Role& r) { return !r.trainer.megatron.sequence_parallel; }},
    {"deallocate_outputs", kOneStage, [](const Job&, const Role& r) { return r.trainer.layout.pipeline == 1; }},
    {"embedding_in_split", kOneStage, [](const Job&, const Role& r) { return r.trainer.layout.pipeline == 1; }},
    {"loss_in_split", kOneStage, [](const Job&, const Role& r) { return r.trainer.layout.pipeline == 1; }},
    {"first_stage_layers", kOneStage, [](const Job&, const Role& r) { return r.trainer.layout.pipeline == 1; }},
    {"last_stage_layers", kOneStage, [](const Job&, const Role& r) { return r.trainer.layout.pipeline == 1; }},
    {"virtual_group", "stages have one chunk of layers (virtual_stages: 1)",
     [](const Job&, const Role& r) { return r.trainer.megatron.virtual_stages == 1; }},
    {"recompute_method", "it is of recompute: full",
     [](const Job&, const Role& r) { return r.trainer.recompute != Recompute::full; }},
    {"recompute_layers", "it is of recompute: full",
     [](const Job&, const Role& r) { return r.trainer.recompute != Recompute::full; }},
    {"recompute_modules", "it is of recompute: selective",
     [](const Job&, const Role& r) { return r.trainer.recompute != Recompute::selective; }},
    {"jit_fuser", "it is of cross_entropy: native",
     [](const Job&, const Role& r) { return r.trainer.megatron.loss != MegatronLoss::native; }},
    {"bias_dropout_fusion", "layers neither drop hidden states nor add a bias behind their halves",
     [](const Job&, const Role& r) { return !drops_or_adds_bias(r); }},
    {"weights_on_host", "it is of loops that keep sets of weights on the host: slime's",
     [](const Job&, const Role& r) { return !r.trainer.loop.gathers_buckets; }},
    {"memory_margin", "no saver pauses the process (offload)",
     [](const Job&,
        const Role&
            r) { return !r.trainer.loop.pauses_whole || !r.trainer.offload_parameters || r.trainer.megatron.selective_offload; }},
    {"selective_offload", "the process does not sleep, or no saver would pause it (offload)",
     [](const Job&, const Role& r) { return !r.trainer.loop.pauses_whole || !r.trainer.offload_parameters; }},
    {"wrap_with_ddp", "a role with an optimizer has the buffer of gradients in any case",
     [](const Job&, const Role& r) { return learns(r); }},
    {"dispatcher", kDense, [](const Job&, const Role& r) { return !has_experts(r); }},
    {"deepep_num_sms", "it is of dispatcher: flex",
     [](const Job&, const Role& r) { return r.trainer.megatron.dispatcher != TokenDispatcher::flex; }},
    {"expert_capacity", kDense, [](const Job&, const Role& r) { return !has_experts(r); }},
    {"mtp_runs", "there are no blocks of multi-token prediction (mtp_layers)",
     [](const Job&, const Role& r) { return r.trainer.megatron.mtp_layers == 0; }},
    {"mtp_fused_loss", kNoBlocks, [](const Job&, const Role& r) { return !runs_blocks(r); }},
    {"mtp_detached", kNoBlocks, [](const Job&, const Role& r) { return !runs_blocks(r); }},
    {"mtp_alone", kNoBlocks, [](const Job&, const Role& r) { return !runs_blocks(r); }},
    {"expert_imbalance", kDense, [](const Job&, const Role& r) { return !has_experts(r); }},
    {"grouped_experts", kDense, [](const Job&, const Role& r) { return !has_experts(r); }},
    {"int4_experts", kDense, [](const Job&, const Role& r) { return !has_experts(r); }},
    {"permute_fusion", kDense, [](const Job&, const Role& r) { return !has_experts(r); }},
    {"router_aux_loss", kDense, [](const Job&, const Role& r) { return !has_experts(r); }},
    {"router_dtype", kDense, [](const Job&, const Role& r) { return !has_experts(r); }},
    {"sinkhorn", kDense, [](const Job&, const Role& r) { return !has_experts(r); }},
    {"shared_expert_overlap", "the model has no shared experts",
     [](const Job&, const Role& r) { return !any_layer(r, [](const Layer& l) { return l.feed_forward.shared_width > 0; }); }},
};

constexpr Row kServers[] = {
    {"lora.", kNoSlots, [](const Job&, const Role& r) { return r.server.lora.slots == 0 || r.server.lora.rank == 0; }},
    {"mamba_full_memory_ratio", "no layer of the model keeps a state", [](const Job&, const Role& r) { return !has_states(r); }},
    {"swa_full_tokens_ratio", "no layer of the model has a window", [](const Job&, const Role& r) { return !has_windows(r); }},
    {"uniform_windows", "no layer of the model has a window", [](const Job&, const Role& r) { return !has_windows(r); }},
    {"text_only", "the model has no tower",
     [](const Job&, const Role& r) { return r.architecture != nullptr && r.architecture->tower.kind.empty(); }},
    {"no_images", "the model has no tower of sound beside the one of images",
     [](const Job&, const Role& r) { return !hears(r); }},
    {"no_sound", "the model has no tower of sound", [](const Job&, const Role& r) { return !hears(r); }},
    {"whole_tower", "the model has no tower, or one GPU has it whole anyway",
     [](const Job&, const Role& r) {
       return (r.architecture != nullptr && r.architecture->tower.kind.empty()) || r.server.layout.tensor == 1;
     }},
    {"whole_dense", kDense, [](const Job&, const Role& r) { return !has_experts(r); }},
    {"score_chunk", "only a teacher is asked for log-probs of prompts",
     [](const Job&, const Role& r) { return r.kind != RoleKind::teacher; }},
    {"state_buffers", "no layer of the model is recurrent", [](const Job&, const Role& r) { return !has_states(r); }},
    {"share_prompts", "every prompt has one response (samples_per_prompt)",
     [](const Job& j, const Role& r) { return j.samples_per_prompt <= 1 && (r.engine != EngineKind::sglang || !has_states(r)); }},
};

bool without_server(const Job& j) {
  return std::none_of(j.roles.begin(), j.roles.end(), [](const Role& r) { return r.serves(); });
}
bool all_told(const Job& j) {
  return std::all_of(j.roles.begin(), j.roles.end(),
                     [](const Role& r) { return r.serves() || !learns(r) || r.trainer.micro_batches > 0; });
}

struct JobRow {
  std::string_view knob, why;
  bool (*idle)(const Job&);
};
constexpr JobRow kJobs[] = {
    {"prompt_tokens", "a trainer by itself takes sequences of sequence_tokens",
     [](const Job& j) { return j.kind == JobKind::sft && j.role("generator") == nullptr; }},
    {"prompt_tokens", "without kv_cache all tokens of a sequence go through every pass",
     [](const Job& j) { return j.role("generator") != nullptr && !j.role("generator")->trainer.kv_cache; }},
    {"response_tokens", "a trainer by itself takes sequences of sequence_tokens",
     [](const Job& j) { return j.kind == JobKind::sft; }},
    {"samples_per_prompt", "there is no server", without_server},
    {"sequences_per_step", "micro_batches counts", all_told},
    {"sync.by", "there is no server that takes weights", without_server},
    {"sync.bucket", "there is no server that takes weights", without_server},
    {"sync.bucket", "weights go by files, or not at all",
     [](const Job& j) { return j.sync.by == SyncBy::disk || j.sync.by == SyncBy::none; }},
    {"sync.bridge", "there is no server that takes weights", without_server},
    {"sync.checkpoint_engine", "there is no server that takes weights", without_server},
};

std::string_view why_idle(const Job& job, const Role& role, std::string_view knob) {
  const auto find = [&](const auto& rows) -> std::string_view {
    for (const Row& row : rows)
      if ((row.knob.ends_with('.') ? knob.starts_with(row.knob) : knob == row.knob) && row.idle(job, role)) return row.why;
    return {};
  };
  if (role.serves()) return find(kServers);
  return knob == "lora.rank" ? std::string_view{} : find(kTrainers);
}
std::string_view why_idle(const Job& job, std::string_view knob) {
  for (const JobRow& row : kJobs)
    if (knob == row.knob && row.idle(job)) return row.why;
  return {};
}

}  // namespace

std::vector<IdleSetting> idle_settings(const Job& job) {
  std::vector<IdleSetting> out;
  const auto take = [&](std::string key, std::string_view why) {
    if (!why.empty() && written(job, key)) out.push_back({std::move(key), std::string(why)});
  };
  for (const Knob& knob : knobs())
    if (knob.of == KnobOf::job) take(std::string(knob.key), why_idle(job, knob.key));
  for (const Role& role : job.roles)
    for (const Knob& knob : knobs())
      if (applies(knob, role)) take(role.name + "." + std::string(knob.key), why_idle(job, role, knob.key));
  return out;
}

std::optional<Note> idle_note(const Job& job) {
  std::vector<std::pair<std::string, std::vector<std::string>>> reasons;  // in the order in which they come
  for (const IdleSetting& setting : idle_settings(job)) {
    auto at = std::find_if(reasons.begin(), reasons.end(), [&](const auto& r) { return r.first == setting.why; });
    if (at == reasons.end()) at = reasons.insert(reasons.end(), {setting.why, {}});
    at->second.push_back(setting.key);
  }
  if (reasons.empty()) return std::nullopt;
  std::vector<std::string> parts;
  for (const auto& [why, keys] : reasons) parts.push_back(fmt::format("{}: {}", fmt::join(keys, ", "), why));
  return Note{Note::Level::info, {}, fmt::format("these settings change nothing here. {}", fmt::join(parts, "; "))};
}

}  // namespace oomplan
