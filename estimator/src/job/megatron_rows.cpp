#include "job/megatron_rows.hpp"

#include <algorithm>

#include <fmt/ranges.h>

#include "job/knob_table.hpp"

namespace oomplan {
namespace {

using knob::Access;

constexpr Limit64 kChunkLimit{1, 1024};
constexpr Limit64 kStageLayerLimit{0, 65536};

/// megatron/core/transformer/transformer_config.py, 0.16.1: recompute_modules
const std::vector<std::string>& modules() {
  static const std::vector<std::string> names{"core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"};
  return names;
}

std::string get_modules(const Job&, const Role* r) {
  return fmt::format("[{}]", fmt::join(r->trainer.megatron.recompute_modules, ", "));
}
/// "[mlp, layernorm]" or "mlp", put in the order of the table.
Refusal set_modules(const Knob& k, Job&, Role* r, std::string_view text) {
  Refusal refusal{fmt::format("a list of {}", fmt::join(k.choices, ", ")), {}, {}};
  if (text.starts_with('[') != text.ends_with(']')) return refusal;
  std::vector<std::string> given;
  for (const std::string_view item : knob::items_of(text)) {
    if (std::find(modules().begin(), modules().end(), item) == modules().end()) return refusal;
    given.emplace_back(item);
  }
  std::vector<std::string> ordered;
  for (const auto& name : modules())
    if (std::find(given.begin(), given.end(), name) != given.end()) ordered.push_back(name);
  r->trainer.megatron.recompute_modules = std::move(ordered);
  return {};
}

std::string get_fraction(const Job&, const Role* r) { return number_text(r->trainer.megatron.host_fraction); }
Refusal set_fraction(const Knob& k, Job&, Role* r, std::string_view text) {
  return knob::check_number(k, text, r->trainer.megatron.host_fraction);
}

Knob setting(std::string_view key, KnobType type, Access access, Effect effect, std::string_view help,
             std::string_view remedy = {}) {
  Knob k;
  k.key = key;
  k.of = KnobOf::trains;
  k.type = type;
  k.engine = EngineKind::megatron;
  k.get = access.get;
  k.set = access.set;
  k.effect = effect;
  k.help = help;
  k.remedy = remedy;
  return k;
}
Knob bounded(Knob k, Limit64 limits, std::string_view unit, std::string_view zero = {}) {
  k.limits = limits;
  k.unit = unit;
  k.zero = zero;
  return k;
}
Knob chosen_from(Knob k, std::vector<std::string> choices) {
  k.choices = std::move(choices);
  return k;
}
Knob capacity() {
  Knob k = setting("expert_capacity", KnobType::number, knob::number_or_auto<&Megatron::expert_capacity>(), Effect::semantics,
                   "Megatron: capacity factor of every expert (--moe-expert-capacity-factor); auto: no token is dropped");
  k.least = 0.01;
  k.most = 1000;
  k.zero = "auto";
  return k;
}

std::vector<Knob> first_megatron_rows() {
  using enum KnobType;
  using enum Effect;
  return {
      setting("sequence_parallel", flag, knob::flag<&Megatron::sequence_parallel>(), speed,
              "Megatron: norms, dropouts and residuals are split over the tensor-parallel ranks too",
              "splits what tensor parallelism leaves whole over its ranks; the same communication"),
      bounded(setting("virtual_stages", count, knob::count<&Megatron::virtual_stages>(), speed,
                      "Megatron: chunks of layers on every pipeline stage (interleaved schedule)"),
              kChunkLimit, "chunks"),
      bounded(setting("virtual_group", count, knob::count_or_auto<&Megatron::virtual_group>(), speed,
                      "Megatron: consecutive micro-batches of a chunk in the interleaved schedule "
                      "(--microbatch-group-size-per-virtual-pipeline-stage); auto: as many as stages"),
              {0, 65536}, "micro-batches", "auto"),
      bounded(setting("first_stage_layers", count, knob::count_or_auto<&Megatron::first_stage_layers>(), speed,
                      "Megatron: layers of the first pipeline stage; auto: as many as the others"),
              kStageLayerLimit, "layers", "auto"),
      bounded(setting("last_stage_layers", count, knob::count_or_auto<&Megatron::last_stage_layers>(), speed,
                      "Megatron: layers of the last pipeline stage; auto: as many as the others"),
              kStageLayerLimit, "layers", "auto"),
      setting("embedding_in_split", flag, knob::flag<&Megatron::embedding_in_split>(), speed,
              "Megatron: the embedding counts as a layer where layers are dealt to stages"),
      setting("loss_in_split", flag, knob::flag<&Megatron::loss_in_split>(), speed,
              "Megatron: the output layer and loss count as a layer where layers are dealt to stages"),
      chosen_from(
          setting("attention", choice, knob::choice<&Megatron::attention>(), speed,
                  "Megatron: attention of Transformer Engine: fused (cuDNN), flash (flash-attention 2) or unfused; local: "
                  "Relax, Megatron's own between Transformer Engine's products"),
          spellings<TeAttention>()),
      chosen_from(setting("recompute_method", choice, knob::choice<&Megatron::recompute_method>(), speed,
                          "Megatron, recompute full: uniform (runs of recompute_layers) or block (the first recompute_layers)"),
                  spellings<RecomputeMethod>()),
      bounded(setting("recompute_layers", count, knob::count<&Megatron::recompute_layers>(), speed,
                      "Megatron, recompute full: layers of a run (uniform) or of a stage's chunk (block)"),
              kStageLayerLimit, "layers"),
      chosen_from(setting("recompute_modules", items, {get_modules, set_modules}, speed,
                          "Megatron, recompute selective: modules whose inside is computed again"),
                  modules()),
      chosen_from(
          setting("cross_entropy", choice, knob::choice<&Megatron::loss>(), numerics,
                  "Megatron: cross-entropy of Transformer Engine (te), the compiled one (native) or the unfused one; or the loss "
                  "of an "
                  "actor: slime's (slime, slime_whole, slime_samples, slime_sliced, slime_divided), AReaL's before 0.5.0 "
                  "(areal_whole), "
                  "verl's (verl_fused, verl_undivided)",
                  "Transformer Engine's writes the gradient into the logits: no fp32 logits"),
          spellings<MegatronLoss>()),
      chosen_from(setting("context_exchange", choice, knob::choice<&Megatron::context_exchange>(), speed,
                          "Megatron: context parallelism by a ring (p2p) or by exchanging heads (a2a)"),
                  spellings<ContextExchange>()),
      setting("gradient_accumulation_fusion", flag, knob::flag<&Megatron::gradient_accumulation_fusion>(), speed,
              "Megatron: weight gradients are added up inside of the matrix product"),
      setting("wrap_with_ddp", flag, knob::flag<&Megatron::wrap_with_ddp>(), free,
              "AReaL's Megatron: a role without an optimizer is wrapped in DistributedDataParallel all the same, whose gradient "
              "buffer nothing uses (megatron.wrap_with_ddp); verl's is not",
              "a reference without it has no gradient buffer"),
      setting("distributed_optimizer", flag, knob::flag<&Megatron::distributed_optimizer>(), speed,
              "Megatron: masters and optimizer states are split over the data-parallel ranks",
              "splits the optimizer's states over the data-parallel ranks"),
      setting("deallocate_outputs", flag, knob::flag<&Megatron::deallocate_outputs>(), free,
              "Megatron: a stage frees its output once it has been sent"),
      capacity(),
      setting("permute_fusion", flag, knob::flag<&Megatron::permute_fusion>(), speed,
              "Megatron: tokens are sorted by expert with Transformer Engine's kernel"),
      chosen_from(
          setting("router_dtype", choice, knob::choice<&Megatron::router>(), numerics, "Megatron: format of the router's logits"),
          {"bf16", "fp32", "fp64", "bfloat16", "float32", "float64"}),
  };
}

/// Of losses that RL frameworks put behind Megatron's output layer.
std::vector<Knob> actor_loss_rows() {
  using enum KnobType;
  using enum Effect;
  Knob temperature = setting("rollout_temperature", number, knob::number_or_auto<&Megatron::rollout_temperature>(), semantics,
                             "slime's loss: --rollout-temperature; other than 1 it divides the logits into a new tensor");
  temperature.least = 0.001;
  temperature.most = 1000;
  return {
      chosen_from(
          setting("models_by", choice, knob::choice<&Megatron::maker>(), speed,
                  "AReaL's and verl's Megatron: who makes the model (megatron.bridge_type, vanilla_mbridge; verl itself without "
                  "use_mbridge), which decides on fusions, the router's format and, in AReaL, how layers are dealt to stages"),
          spellings<ModelMaker>()),
      setting("fp32_logits", flag, knob::flag<&Megatron::fp32_logits>(), numerics,
              "AReaL's Megatron: the output layer writes fp32 logits, and the loss its softmax and gradient over them "
              "(megatron.enable_chunked_logits)",
              "no second tensor of the logits' size"),
      bounded(
          setting("head_chunk_size", count, knob::count<&Megatron::head_chunk>(), speed,
                  "AReaL's Megatron, fp32_logits: rows of the output layer and its loss that run at once, and again in backward "
                  "(megatron.lm_head_loss_chunk_size); 0: all",
                  "logits of a few rows in place of all tokens'"),
          {0, kTokenLimit.most}, "rows"),
      setting(
          "entropy_loss", flag, knob::flag<&Megatron::entropy_loss>(), semantics,
          "Megatron of verl and slime: the entropy is part of the loss (entropy_coeff, --entropy-coef other than 0); of AReaL "
          "with fp32_logits (megatron.entropy_requires_grad)"),
      bounded(setting("teacher_topk", count, knob::count<&Megatron::teacher_topk>(), semantics,
                      "Megatron of verl and Relax: the loss is the divergence from a teacher over so many of its most likely "
                      "tokens (distillation_loss.topk with forward_kl_topk; --opd-log-prob-top-k); 0: there is none"),
              {0, 4096}, "tokens"),
      setting("teacher_in_advantages", flag, knob::flag<&Megatron::teacher_in_advantages>(), semantics,
              "with teacher_topk, Relax's: advantages alone have the divergence; what is made of those tokens goes when the loss "
              "is there (--opd-kl-coef)"),
      bounded(
          setting("teacher_rows", count, knob::count<&Megatron::teacher_rows>(), semantics,
                  "with teacher_topk, Relax's: response tokens of a rollout on a rank, whose ids and log-probs lie on the GPU "
                  "while it trains"),
          {0, kTokenLimit.most}, "tokens"),
      bounded(
          setting("labels", count, knob::count<&Megatron::labels>(), semantics,
                  "Relax's supervised training: classes of a head in place of the output layer (--num-labels with --task-type "
                  "seq_cls); 0: a language model"),
          {0, 1048576}, "labels"),
      setting("teacher_alone", flag, knob::flag<&Megatron::teacher_alone>(), semantics,
              "with teacher_topk: nothing else is part of the loss, and no log-probs are made (neither use_task_rewards nor "
              "use_policy_gradient, from verl 0.9 on)"),
      bounded(
          setting(
              "log_probs_chunk_size", count, knob::count<&Megatron::log_probs_chunk>(), speed,
              "rows of the logits that the loss of slime (--log-probs-chunk-size) or AReaL (logprobs_chunk_size) takes at once; "
              "0: all, under AReaL 1024"),
          {0, kTokenLimit.most}, "rows"),
      setting("recompute_loss_function", flag, knob::flag<&Megatron::recompute_loss>(), speed,
              "slime's loss is computed again in backward (--recompute-loss-function)"),
      std::move(temperature),
  };
}

/// What was added to the settings later, each under Megatron's own flag.
std::vector<Knob> more_megatron_rows() {
  using enum KnobType;
  using enum Effect;
  Knob imbalance = setting("expert_imbalance", number, knob::number_or_auto<&Megatron::expert_imbalance>(), semantics,
                           "Megatron: rows of the fullest rank's experts over those of even routing, as measured; 1: even");
  imbalance.least = 1;
  imbalance.most = 1024;
  Knob offloaded = setting("optimizer_offload_fraction", number, {get_fraction, set_fraction}, speed,
                           "Megatron, optimizer_cpu_offload: part of a rank's share that lies on the host, whole parameters "
                           "until it is reached (--optimizer-offload-fraction)");
  offloaded.least = 0;
  offloaded.most = 1;
  const std::vector<std::string> states{"fp32", "fp16", "bf16", "fp8"};
  return {
      std::move(imbalance),
      bounded(
          setting("weights_on_host", count, knob::count<&Megatron::weights_on_host>(), speed,
                  "Megatron of slime: sets of weights with a pinned copy of a rank's part on the host each: the actor's, which "
                  "go to the servers, a reference's, a teacher's"),
          {0, 16}, "sets"),
      bounded(setting("memory_margin", KnobType::bytes, knob::bytes<&Megatron::memory_margin>(), free,
                      "Megatron of slime: torch_memory_saver takes nothing that would leave less of the GPU free "
                      "(--train-memory-margin-bytes)"),
              {0, kMemoryLimit.most}, {}),
      setting("selective_offload", flag, knob::flag<&Megatron::selective_offload>(), speed,
              "Megatron of Relax: what sleeps is moved tensor by tensor, without torch_memory_saver (--selective-offload)"),
      bounded(setting("optimizer_instances", count, knob::count<&Megatron::optimizer_instances>(), speed,
                      "Megatron: instances of the distributed optimizer, each with a part of the data-parallel ranks "
                      "(--num-distributed-optimizer-instances)"),
              {1, 65536}, "instances"),
      setting("router_aux_loss", flag, knob::flag<&Megatron::router_aux_loss>(), semantics,
              "Megatron: a loss balances the experts (--moe-router-load-balancing-type, --moe-aux-loss-coeff)"),
      chosen_from(setting("dispatcher", choice, knob::choice<&Megatron::dispatcher>(), speed,
                          "Megatron: tokens are sent to the ranks of their experts (alltoall), the same by DeepEP (flex), or "
                          "gathered on all of them (allgather) (--moe-token-dispatcher-type)"),
                  spellings<TokenDispatcher>()),
      bounded(setting("deepep_num_sms", count, knob::count<&Megatron::deepep_sms>(), speed,
                      "Megatron, dispatcher: flex: multiprocessors that move DeepEP's tokens, an even number; its buffers are "
                      "channels of two (--moe-deepep-num-sms)"),
              {2, 128}, "multiprocessors"),
      setting("grouped_experts", flag, knob::flag<&Megatron::grouped_experts>(), speed,
              "Megatron: one grouped product for all experts of a rank (--moe-grouped-gemm); false: one expert after another"),
      setting("int4_experts", flag, knob::flag<&Megatron::int4_experts>(), numerics,
              "slime's Megatron: experts learn with weights that are rounded to 4 bits (OPEN_TRAINING_INT4_FAKE_QAT_FLAG)"),
      setting("shared_expert_overlap", flag, knob::flag<&Megatron::shared_expert_overlap>(), speed,
              "Megatron: shared experts run beside the exchange of tokens (--moe-shared-expert-overlap)"),
      setting("sinkhorn", flag, knob::flag<&Megatron::sinkhorn>(), semantics,
              "Megatron: sinkhorn balances the experts (--moe-router-load-balancing-type sinkhorn)"),
      setting("jit_fuser", flag, knob::flag<&Megatron::jit_fuser>(), speed,
              "Megatron: small functions are compiled; false is --disable-jit-fuser"),
      setting("rotary_fusion", flag, knob::flag<&Megatron::rotary_fusion>(), speed,
              "Megatron: rotary positions in one kernel; false is --no-rope-fusion"),
      setting("attention_mask", flag, knob::flag<&Megatron::attention_mask>(), free,
              "Megatron: the batch brings a mask along; false is --no-create-attention-mask-in-dataloader"),
      bounded(setting("mtp_layers", count, knob::count<&Megatron::mtp_layers>(), semantics,
                      "Megatron: blocks of multi-token prediction on the last stage (--mtp-num-layers)"),
              {0, 64}, "blocks"),
      setting("mtp_runs", flag, knob::flag<&Megatron::mtp_runs>(), semantics,
              "verl: its actor calls the blocks of mtp_layers; false is model.mtp.enable_train=False"),
      setting("mtp_fused_loss", flag, knob::flag<&Megatron::mtp_fused_loss>(), numerics,
              "slime, Relax: the blocks of mtp_layers have Megatron's fused cross-entropy (--cross-entropy-loss-fusion)"),
      setting("mtp_detached", flag, knob::flag<&Megatron::mtp_detached>(), semantics,
              "Relax: the loss of the blocks of mtp_layers reaches neither decoder, embedding nor output layer; false is "
              "--mtp-detach-paths none"),
      setting("mtp_alone", flag, knob::flag<&Megatron::mtp_alone>(), semantics,
              "Relax: the blocks of mtp_layers alone are trained (--mtp-only-training)"),
      chosen_from(setting("te_release", choice, knob::choice<&Megatron::te_release>(), speed,
                          "release of Transformer Engine: 2.9 stands for those before 2.10, 2.11 for those before 2.14"),
                  spellings<TeRelease>()),
      chosen_from(setting("core_release", choice, knob::choice<&Megatron::core_release>(), semantics,
                          "release of Megatron-core: 0.12 stands for those before 0.13, whose routers keep their input in "
                          "router_dtype"),
                  spellings<CoreRelease>()),
      setting("precision_aware_optimizer", flag, knob::flag<&Megatron::precision_aware>(), numerics,
              "Megatron: 16 bits of a master beside its parameter, states in exp_avg_dtype and exp_avg_sq_dtype "
              "(--use-precision-aware-optimizer)",
              "2 bytes fewer for each parameter of a rank's share, and narrower states"),
      chosen_from(setting("exp_avg_dtype", choice, knob::choice<&Megatron::exp_avg>(), numerics,
                          "Megatron, precision_aware_optimizer: format of Adam's first state (--exp-avg-dtype)"),
                  states),
      chosen_from(setting("exp_avg_sq_dtype", choice, knob::choice<&Megatron::exp_avg_sq>(), numerics,
                          "Megatron, precision_aware_optimizer: format of Adam's second state (--exp-avg-sq-dtype)"),
                  states),
      setting("fp32_masters", flag, knob::flag<&Megatron::fp32_masters>(), numerics,
              "Megatron, precision_aware_optimizer: masters are Megatron's own in fp32, 16-bit gradients are copied to fp32 for "
              "the step; so it is with an --fp8-recipe other than delayed even where fp8 is off, as Megatron-Bridge has it"),
      setting("stateless_adam", flag, knob::flag<&Megatron::stateless_adam>(), numerics,
              "slime's Megatron: Adam begins anew with every step and keeps no states (--use-stateless-adam)",
              "8 bytes fewer for each parameter of a rank's share"),
      setting("optimizer_cpu_offload", flag, knob::flag<&Megatron::host_optimizer>(), speed,
              "Megatron: masters and states lie on the host, where the step is made (--optimizer-cpu-offload)",
              "takes masters and states of the offloaded parameters off the GPU; the host makes the step"),
      std::move(offloaded),
      setting("overlap_grad_reduce", flag, knob::flag<&Megatron::overlap_grad_reduce>(), speed,
              "Megatron: gradients are reduced in buckets of 40 million numbers or more (--overlap-grad-reduce), which decides "
              "whose parts a rank's share has"),
      setting("activation_fusion", flag, knob::flag<&Megatron::activation_fusion>(), speed,
              "Megatron: gated activations are one kernel; false is --no-bias-swiglu-fusion, and Megatron-Bridge's default "
              "(bias_activation_fusion)",
              "one kernel keeps the first product alone"),
      setting("bias_dropout_fusion", flag, knob::flag<&Megatron::bias_dropout_fusion>(), speed,
              "Megatron: bias, dropout and residual sum are one kernel; false is --no-bias-dropout-fusion",
              "one kernel makes no tensor between what a half gives and the sum"),
      setting("sequence_parallel_input_regather", flag, knob::flag<&Megatron::input_regather>(), speed,
              "Megatron, adapters under sequence parallelism: those of linear_qkv and linear_fc1 keep this rank's part of their "
              "input "
              "and gather it again in backward (Megatron-Bridge's LoRA)",
              "keeps a part of the adapters' inputs; they are gathered once more in backward"),
      chosen_from(
          setting("fp8_recipe", choice, knob::choice<&Megatron::fp8>(), numerics,
                  "Megatron: products of the layers in 8 bits (--fp8-format), scaled by the largest number of a tensor's last "
                  "passes, by its own, for every 128 numbers, or for every 32 (--fp8-recipe)",
                  "what products keep for backward takes 8 bits a number"),
          spellings<Fp8Recipe>()),
      setting(
          "fp8_param_gather", flag, knob::flag<&Megatron::fp8_parameters>(), numerics,
          "Megatron, fp8_recipe: matrices of the layers are parameters in 8 bits (--fp8-param-gather); false: copies in 8 bits "
          "stay beside those in 16 bits"),
      bounded(setting("bf16_layers_at_start", count, knob::count<&Megatron::fp8_wide_first>(), numerics,
                      "Megatron, fp8_recipe: first layers of the model that stay in bf16 (--first-last-layers-bf16, "
                      "--num-layers-at-start-in-bf16)"),
              {0, 4096}, "layers"),
      bounded(setting("bf16_layers_at_end", count, knob::count<&Megatron::fp8_wide_last>(), numerics,
                      "Megatron, fp8_recipe: last layers of the model that stay in bf16 (--num-layers-at-end-in-bf16)"),
              {0, 4096}, "layers"),
      setting("router_padding", flag, knob::flag<&Megatron::router_padding>(), semantics,
              "Megatron, fp8_recipe: the router pads what every expert gets (--moe-router-padding-for-quantization); false: rows "
              "are copied in front of the experts",
              "experts' rows are not copied to be padded"),
      chosen_from(
          setting("megatron_fsdp", choice, knob::choice<&Megatron::fsdp>(), speed,
                  "Megatron: Megatron-FSDP in place of its own data parallelism (--use-megatron-fsdp), and what its ranks "
                  "split (--data-parallel-sharding-strategy)",
                  "splits parameters and gradients over the data-parallel ranks too"),
          spellings<MegatronFsdpStrategy>()),
      bounded(setting("communication_unit_size", count, knob::count_or_auto<&Megatron::communication_unit>(), speed,
                      "Megatron, megatron_fsdp: elements of gradients that wait to be reduced; half as many parameters are "
                      "gathered ahead (--suggested-communication-unit-size); auto: at least a billion"),
              {0, 1'000'000'000'000}, "elements", "auto"),
      setting("fsdp_double_buffer", flag, knob::flag<&Megatron::fsdp_double_buffer>(), speed,
              "Megatron, megatron_fsdp: two buffers that stay for gathered layers and two for their gradients "
              "(--fsdp-double-buffer)"),
      setting("pad_expert_input", flag, knob::flag<&Megatron::pads_experts>(), semantics,
              "Megatron, expert_capacity: experts with fewer tokens are filled up (--moe-pad-expert-input-to-capacity)"),
      chosen_from(setting("transformer_impl", choice, knob::choice<&Megatron::impl>(), speed,
                          "Megatron: modules of a layer: Transformer Engine's or Megatron-core's own (--transformer-impl)"),
                  spellings<TransformerImpl>()),
      setting("masked_softmax_fusion", flag, knob::flag<&Megatron::masked_softmax_fusion>(), speed,
              "Megatron, transformer_impl or attention local: mask and softmax of the scores are one kernel; false is "
              "--no-masked-softmax-fusion",
              "one kernel writes no second tensor of the scores"),
      setting("attention_softmax_in_fp32", flag, knob::flag<&Megatron::softmax_in_fp32>(), numerics,
              "Megatron, transformer_impl or attention local without the kernel of mask and softmax: the softmax is in fp32 "
              "(--attention-softmax-in-fp32)"),
      setting("query_key_layer_scaling", flag, knob::flag<&Megatron::query_key_layer_scaling>(), numerics,
              "Megatron, transformer_impl local: scores are divided by the number of the layer, and the softmax is in fp32 "
              "(--apply-query-key-layer-scaling)"),
      setting("defer_embedding_wgrad_compute", flag, knob::flag<&Megatron::defer_wgrad>(), speed,
              "Megatron: the last stage makes the gradients of its output layer's matrix when a step's passes are over, from "
              "logits' gradients that are kept until then (--defer-embedding-wgrad-compute)"),
      bounded(setting("wgrad_deferral_limit", count, knob::count_or_auto<&Megatron::deferral_limit>(), speed,
                      "Megatron, defer_embedding_wgrad_compute: of how many micro-batches (--wgrad-deferral-limit); auto: all"),
              {0, 65536}, "micro-batches", "auto"),
  };
}

}  // namespace

std::vector<Knob> megatron_rows() {
  std::vector<Knob> rows = first_megatron_rows();
  for (Knob& row : actor_loss_rows()) rows.push_back(std::move(row));
  for (Knob& row : more_megatron_rows()) rows.push_back(std::move(row));
  return rows;
}

}  // namespace oomplan
