// A Job: which models run where, on which engines, with which settings, and in what turns.
//
// Plain values. `read` (oomplan.hpp) makes one from a file, with the origin of every value; the defaults below are only there
// so that a Job made by hand is well defined, an engine's own defaults are filled in by the reader from models/engines.
// Token and sequence counts are per data-parallel rank unless said otherwise. Sizes are bytes.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <oomplan/units/bytes.hpp>
#include <oomplan/units/dtype.hpp>
#include <oomplan/units/errors.hpp>

namespace oomplan OOMPLAN_PUBLIC {

struct Architecture;  // catalog/architecture.hpp; made by read() from a model's name or config.json

enum class JobKind : std::uint8_t { rl, sft, serving };
/// A generator runs transformers' model as it is, token by token or over whole texts, and learns nothing.
enum class RoleKind : std::uint8_t { actor, reference, critic, reward, teacher, trainer, rollout, server, generator };
/// What runs a role. `single` is one device without sharding.
enum class EngineKind : std::uint8_t { single, fsdp2, fsdp1, ddp, deepspeed, megatron, archon, sglang, vllm };
/// FSDP2 shards it: AReaL's Archon is a set of models and plans around FSDP2.
constexpr bool shards_by_fsdp2(EngineKind e) { return e == EngineKind::fsdp2 || e == EngineKind::archon; }
/// Which framework drives the engine: it decides wrapping, precision, loss head and what is freed between phases.
enum class Framework : std::uint8_t { torch, areal, verl, agilerl, slime, relax };
/// Implementation of the operators; decides what is saved for backward (layers/).
/// LitGPT has two: its norm changed with release 0.4.6. torchtune has two: packed samples run under flex_attention.
enum class Kernels : std::uint8_t {
  hf_flash,
  hf_sdpa,
  hf_eager,
  torchtitan,
  litgpt,
  litgpt_0_4_5,
  transformer_engine,
  torchtune,
  torchtune_packed,
  archon
};
/// Of every layer in backward: nothing, all of it, or all but what costs most to compute again (torchtitan's per-operator
/// choice).
enum class Recompute : std::uint8_t { none, full, selective };
/// What backward needs lies on the host from a layer's forward pass to its backward pass: nothing; what layers save, by verl's
/// enable_activation_offload; what the model's forward pass saves, by torch.autograd.graph.save_on_cpu, in pageable or pinned
/// memory; what layers save, by torch's offload_wrapper around each; all but the output layer's, by TRL's and torchtune's
/// OffloadActivations, with the last five variables left on the device.
enum class OffloadActivations : std::uint8_t { none, verl, save_on_cpu, save_on_cpu_pinned, offload_wrapper, trl, torchtune };
/// How torchtitan's RMSNorm runs: as one kernel (nn.RMSNorm from PyTorch 2.9 on), or written out in fp32.
enum class RmsNorm : std::uint8_t { fused, by_hand };
/// torchao's float8 training of a layer's matrices: not at all, or with a scale for every tensor or every row (and column);
/// of Archon's, for every 128 numbers of a row and every square of 128.
enum class Float8 : std::uint8_t { none, tensorwise, rowwise, blockwise };
/// transformers 5: how the routed rows go through the experts (experts_implementation). automatic: as the release does by itself.
enum class Experts : std::uint8_t { automatic, grouped_mm, batched_mm, eager };
/// What runs a gated delta rule in transformers' layers: transformers' own functions, flash-linear-attention, or that and
/// causal-conv1d.
enum class LinearAttention : std::uint8_t { torch, fla, fla_conv };
enum class OptimizerKind : std::uint8_t {
  adamw,
  adam,
  sgd,
  sgd_momentum,
  adafactor,        ///< transformers' own, as its Trainer calls it
  torch_adafactor,  ///< torch.optim.Adafactor
  muon,             ///< torch.optim.Muon for matrices of the layers, AdamW for all else
  apollo_adamw,     ///< apollo_torch: matrices of the layers through random projections, AdamW for all else
  adamw_8bit,       ///< this and the rest: bitsandbytes
  paged_adamw_8bit,
  paged_adamw_32bit,
  lion_32bit,
  lion_8bit,
  paged_lion_32bit,
  paged_lion_8bit,
};
/// torch's optimizers that look neither at shapes nor at blocks: to them a flat shard or a DTensor is what a parameter is.
constexpr bool element_by_element(OptimizerKind kind) {
  return kind == OptimizerKind::adamw || kind == OptimizerKind::adam || kind == OptimizerKind::sgd ||
         kind == OptimizerKind::sgd_momentum;
}
enum class OptimizerForm : std::uint8_t { foreach, fused, loop };
/// FSDP1: when the backward pass gathers the unit that comes next. torch/distributed/fsdp/api.py: BackwardPrefetch
enum class BackwardPrefetch : std::uint8_t {
  pre,   ///< before this unit computes
  post,  ///< once this unit's parameters are freed, before its gradients are reduced
  none,  ///< when it is its turn
};
/// In which format LoRA's adapters lie: peft makes them fp32 unless autocast_adapter_dtype is false.
enum class AdapterFormat : std::uint8_t { fp32, storage };
/// What is trained beside a frozen model: pairs of matrices (LoRA), vectors around one frozen pair (VeRA), factors (IA3), all of
/// huggingface/peft; LitGPT's prefixes with gates (adapter), and these with factors and offsets of every matrix and the norms.
enum class AdapterKind : std::uint8_t { lora, vera, ia3, adapter, adapter_v2 };
/// Of a model with a vision tower under Megatron: modules are found by their names, which the tower has, too, or outside of it.
enum class AdapterScope : std::uint8_t { all, language };
/// What follows the last hidden state in training, and in forward-only log-prob passes (layers/heads).
enum class LossHead : std::uint8_t {
  hf_loss,       ///< transformers' cross-entropy on fp32 logits
  logprob_fp32,  ///< logits.float() -> log_softmax -> gather
  logprob_bf16,
  logprob_lse,           ///< gather - logsumexp in fp32
  logprob_rows,          ///< log_softmax of one row after another
  logprob_chunked,       ///< 1024-row chunks of logprob_fp32
  logprob_entropy_fp32,  ///< with entropy that needs a gradient
  logprob_entropy_nograd,
  logprob_temperature,    ///< out-of-place division, then logprob_fp32
  verl_flash_ce,          ///< verl: flash-attn cross-entropy, temperature out of place
  verl_entropy_compiled,  ///< verl: with compiled entropy that needs a gradient (default when entropy_coeff != 0)
  verl_entropy_eager,
  verl_entropy_checkpoint,          ///< verl: eager entropy under a reentrant checkpoint (entropy_checkpointing)
  verl_entropy_chunked,             ///< verl: entropy of 2048 rows after another (entropy_from_logits_with_chunking)
  verl_entropy_chunked_checkpoint,  ///< both
  verl_flash_ce_div_in_place,       ///< verl up to 0.8: the temperature divides the logits in place
  verl_entropy_eager_div_in_place,
  verl_fp32_flash_ce,  ///< verl on a model that makes its logits fp32
  verl_fp32_entropy_eager,
  verl_fused,  ///< verl's fused kernels by torch: log-probs and entropy from hidden states, 512 rows at a time, recomputed in
               ///< backward
  verl_fused_entropy,              ///< with entropy that needs a gradient
  verl_fused_log_softmax,          ///< the same up to 0.7: log-probs from log_softmax in place of flash-attn's cross-entropy
  verl_fused_log_softmax_entropy,  ///< with entropy that needs a gradient
  verl_fused_triton,  ///< verl's fused kernels by Triton: nothing of a vocabulary's size in forward, parts of 9504 words in
                      ///< backward
  verl_fused_triton_entropy,  ///< with entropy that needs a gradient
  verl_rows,                  ///< verl without flash-attn's cross-entropy: log_softmax of one row after another
  areal_compiled,  ///< AReaL: log-probs and entropy in 1024-row chunks, compiled; under tensor parallelism vocab-parallel ones
  areal_eager,     ///< the same without torch.compile, as AReaL runs it on NPUs
  areal_clamped,   ///< AReaL's recipe AEnt: areal_compiled with an entropy of the likelier tokens, which has a gradient
  agilerl_fused,   ///< AgileRL: log-probs from hidden states, compiled chunks of 256 MiB of fp32 logits, recomputed in backward
  cross_entropy,   ///< F.cross_entropy(logits.float()) in the training loop; under tensor parallelism with loss_parallel
  cross_entropy_chunked,   ///< ... of eight parts of every sequence, one after another
  cross_entropy_compiled,  ///< cross_entropy under torch.compile, as torchtitan has it since April 2025
  value,                   ///< critic: a linear layer h -> 1
  liger_ce,                ///< hf_loss with Liger's cross-entropy: the gradient is written into the fp32 logits
  liger_fused_ce,          ///< Liger's output layer and cross-entropy in one, by chunks: no logits of all tokens
  foak_ce,            ///< hf_loss with fms-acceleration's cross-entropy: the gradient is written into the shifted fp32 logits
  litgpt,             ///< LitGPT: cross-entropy of fp32 logits, 128 tokens at a time; the training loop holds the logits
  torchtune,          ///< torchtune: cross-entropy of the logits that its model makes fp32
  torchtune_chunked,  ///< CEWithChunkedOutputLoss: logits of eight parts of every sequence, each made fp32 for its own loss
  trl_dpo,            ///< TRL: log-probs of chosen and rejected sequences, one after another, against a reference
  trl_simpo,          ///< the same without a reference: CPO's trainer with SimPO's loss
  trl_orpo,           ///< with the likelihood loss of the chosen half
  trl_grpo,           ///< TRL: temperature out of place, log-probs of one sequence after another, entropy as a metric
  trl_kto,            ///< TRL: log-probs of desirable and undesirable completions, and a KL term of pairs that do not match
  trl_dpo_0_18,       ///< trl_dpo of 0.18 to 0.28: labels are rolled, and no logits are cut off
  trl_dpo_0_29,       ///< trl_dpo of 0.29 to 1.5: the shifted logits are a copy
  trl_kto_0_18,       ///< trl_kto of 0.18 to 1.5: the logits of either kind are copies with a gradient
  trl_grpo_1_0,       ///< trl_grpo of 1.0 to 1.9: the temperature divides the logits in place
  trl_gkd,            ///< TRL: Jensen-Shannon divergence from a teacher's logits of the same vocabulary (GKD, GOLD)
  trl_sft,            ///< TRL's SFTTrainer: transformers' loss, then entropy and accuracy of the logits that it holds
  trl_sft_1_3,        ///< the same of 1.3 to 1.5, which copies the logits once for each
  reward_pairs,       ///< reward model: a linear layer h -> 1, each sequence's last token, Bradley-Terry of the pairs
  slime_fsdp,         ///< slime's FSDP backend: fp32 logits, compiled log-probs, an entropy with a gradient from two copies
  next_token,         ///< generator: transformers' generate(), which chooses a token from an fp32 copy of the last one's logits
  lm_eval,            ///< generator: lm-evaluation-harness, log-probs of all tokens beside those of the batch before
};
/// The forward pass of a reference model in the step of a preference loss, between the policy's forward and backward pass: none
/// (its log-probs come with the batch), of a second model on the same GPUs (a teacher, too), or of the policy without its
/// adapters.
enum class ReferencePass : std::uint8_t { none, model, adapters_off };
/// What of a vision tower is trained: all of it, what hands its features to the language model (merger, projector), or nothing.
enum class TowerTraining : std::uint8_t { all, projector, none };
/// How a model comes to a GPU in front of ZeRO's stage 3: each parameter is split as it is made (zero.Init), or all of it is
/// loaded first, in the format of the parameters or in fp32.
enum class ZeroLoad : std::uint8_t { split, whole, whole_fp32 };
/// How new weights reach the servers.
enum class SyncBy : std::uint8_t { none, nccl, disk, ipc };  // ipc: CUDA IPC, only between processes of one GPU
/// What a change of a knob does besides memory.
enum class Effect : std::uint8_t { free, speed, numerics, semantics };

/// Degrees of parallelism. world = data * tensor * pipeline * context.
struct Layout {
  std::int64_t data = 1, tensor = 1, pipeline = 1;
  std::int64_t context = 1;  ///< FSDP: Ulysses
  std::int64_t expert = 1, expert_tensor = 1;
  bool hybrid = false;  ///< written as attn:...|ffn:...
  constexpr std::int64_t world() const { return data * tensor * pipeline * context; }
  bool operator==(const Layout&) const = default;
};

/// Megatron: which attention Transformer Engine runs: cuDNN's, flash-attention 2, or matrix products and a softmax of its own; or
/// Megatron's own between Transformer Engine's products.
enum class TeAttention : std::uint8_t { fused, flash, unfused, local };
/// Megatron's full recomputation: runs of layers one after another, or the first layers of a stage alone.
enum class RecomputeMethod : std::uint8_t { uniform, block };
/// Megatron's cross-entropy: Transformer Engine's, Megatron's own compiled one (native), or its autograd function (unfused); or
/// the loss of slime's actors, log-probs with their entropy.
enum class MegatronLoss : std::uint8_t {
  te,
  native,
  unfused,
  slime,
  slime_whole,
  slime_samples,
  slime_divided,
  areal_whole,
  verl_fused,
  verl_undivided,
  slime_sliced
};
/// Megatron: how ranks of one context exchange keys and values (ring) or heads (Ulysses).
enum class ContextExchange : std::uint8_t { p2p, a2a };

/// Transformer Engine before release 2.10, from there on, and from 2.14 on, whose step reads and writes states in bf16 as they
/// are.
enum class TeRelease : std::uint8_t { v2_9, v2_11, v2_14 };
/// Megatron-core: 0.12 stands for those before 0.13.
enum class CoreRelease : std::uint8_t { v0_12, v0_16 };

/// Megatron-FSDP: what the data-parallel ranks split (--data-parallel-sharding-strategy). The order is that of what is split.
enum class MegatronFsdpStrategy : std::uint8_t { off, no_shard, optim, optim_grads, optim_grads_params };
/// Megatron: how tokens reach their experts: sent to the ranks that have them, row by row or once to every such rank by DeepEP
/// (flex), or all tokens to all ranks.
enum class TokenDispatcher : std::uint8_t { alltoall, allgather, flex };

/// SGLang: how tokens reach the ranks of their experts: by collectives over all of them, or by DeepEP, whose kernels for prefill
/// (normal) and for decoding (low_latency) have room of their own; automatic has both.
enum class ExpertExchange : std::uint8_t { collectives, deepep, deepep_normal, deepep_low_latency };

/// Megatron: how products of Transformer Engine run in 8 bits (--fp8-recipe with --fp8-format). A tensor is scaled by the largest
/// number of its last passes (delayed), by its own (tensorwise), or there is a scale for 128 numbers (blockwise), for 32 (mxfp8).
enum class Fp8Recipe : std::uint8_t { none, delayed, tensorwise, blockwise, mxfp8 };

/// Who makes the models that an RL framework trains on Megatron: ISEEKYAN/mbridge or NVIDIA-NeMo/Megatron-Bridge.
enum class ModelMaker : std::uint8_t { mbridge, megatron_bridge, verl };

/// Megatron: whose modules a layer is made of: Transformer Engine's, or Megatron-core's own.
enum class TransformerImpl : std::uint8_t { transformer_engine, local };

/// Settings of Megatron-core alone.
struct Megatron {
  ModelMaker maker = ModelMaker::mbridge;  ///< AReaL, verl: who makes the model
  TransformerImpl impl = TransformerImpl::transformer_engine;
  bool masked_softmax_fusion = true;     ///< local: mask and softmax of the attention are one kernel
  bool softmax_in_fp32 = false;          ///< local, without that kernel: the softmax is in fp32
  bool query_key_layer_scaling = false;  ///< local: scores are divided by the layer's number, and the softmax is in fp32
  bool sequence_parallel = false;
  std::int64_t virtual_stages = 1;                             ///< chunks of layers on every pipeline stage
  std::int64_t first_stage_layers = 0, last_stage_layers = 0;  ///< 0: as the others
  bool embedding_in_split = false, loss_in_split = false;      ///< the embedding, the loss count as a layer of the split
  TeAttention attention = TeAttention::fused;
  RecomputeMethod recompute_method = RecomputeMethod::uniform;
  std::int64_t recompute_layers = 1;           ///< of a run (uniform), of a stage (block)
  std::vector<std::string> recompute_modules;  ///< with selective recomputation
  MegatronLoss loss = MegatronLoss::unfused;
  ContextExchange context_exchange = ContextExchange::p2p;
  bool gradient_accumulation_fusion = true;  ///< weight gradients are added to the fp32 ones inside of the matrix product
  bool distributed_optimizer = true;
  bool wrap_with_ddp = true;             ///< of a role without an optimizer: the flat gradient buffer is there all the same
  bool entropy_loss = false;             ///< the entropy of an actor's tokens is part of its loss
  std::int64_t teacher_topk = 0;         ///< verl: the loss is over so many of the teacher's most likely tokens; 0: over none
  bool teacher_alone = false;            ///< ... and over nothing else: no log-probs are made
  bool teacher_in_advantages = false;    ///< Relax: of teacher_topk tokens log-probs are made, which no loss takes
  std::int64_t teacher_rows = 0;         ///< Relax: tokens of the rollout on a rank whose teacher_topk tokens lie on the GPU
  std::int64_t labels = 0;               ///< Relax: classes of a head in place of the output layer; 0: it is a language model
  bool fp32_logits = false;              ///< AReaL: the output layer writes fp32 logits, and the loss over them
  std::int64_t head_chunk = 0;           ///< AReaL, fp32_logits: rows of the output layer that run at once, twice; 0: all
  std::int64_t log_probs_chunk = 0;      ///< rows of the logits that the loss takes at once; 0: all, under AReaL 1024
  bool recompute_loss = false;           ///< slime: the loss is computed again in backward
  double rollout_temperature = 1;        ///< slime: other than 1 it divides the logits into a new tensor
  std::int64_t optimizer_instances = 1;  ///< of the distributed optimizer: each has a part of the data-parallel ranks
  bool deallocate_outputs = true;        ///< a stage's output is freed once it has been sent
  double expert_capacity = 0;            ///< capacity factor of every expert; 0: all tokens are kept, and evenly routed
  bool permute_fusion = true;
  DType router = DType::bf16;  ///< format of the router's arithmetic
  TokenDispatcher dispatcher = TokenDispatcher::alltoall;
  std::int64_t deepep_sms = 20;        ///< with flex: multiprocessors that move tokens; two are a channel of its buffers
  bool grouped_experts = true;         ///< one grouped product for all experts of a rank; otherwise one expert after another
  bool int4_experts = false;           ///< slime: grouped products multiply by copies that are rounded to 4 bits and back
  bool shared_expert_overlap = false;  ///< shared experts run beside the exchange of tokens
  bool sinkhorn = false;               ///< the router's choice is balanced by sinkhorn
  bool jit_fuser = true;               ///< small functions go through torch.compile
  std::int64_t virtual_group = 0;      ///< consecutive micro-batches of a chunk in the interleaved schedule; 0: as many as stages
  double expert_imbalance = 1;         ///< rows of a rank's experts over those of even routing
  bool router_aux_loss = true;         ///< a loss that balances the experts
  bool rotary_fusion = true;
  bool attention_mask = false;  ///< the batch brings a mask along
  std::int64_t mtp_layers = 0;  ///< blocks of multi-token prediction
  bool mtp_runs = true;         ///< false: they have weights, gradients and states, and nothing calls them
  bool mtp_fused_loss = false;  ///< beside an actor's loss: their cross-entropy is Megatron's fused one
  bool mtp_detached = true;     ///< beside an actor's loss: theirs reaches neither decoder, embedding nor output layer
  bool mtp_alone = false;       ///< Relax: they alone are trained
  TeRelease te_release = TeRelease::v2_11;
  CoreRelease core_release = CoreRelease::v0_16;
  bool precision_aware = false;                           ///< the optimizer keeps what a 16-bit parameter lacks of its master
  DType exp_avg = DType::fp32, exp_avg_sq = DType::fp32;  ///< Adam's states, with precision_aware
  bool fp32_masters = false;                              ///< with precision_aware: masters are Megatron's own, in fp32
  bool stateless_adam = false;                            ///< Adam begins anew with every step and keeps no states
  bool host_optimizer = false;                            ///< masters and states lie on the host, where the step is made
  double host_fraction = 1;                               ///< with host_optimizer: of a rank's share, by numbers of elements
  bool selective_offload = false;                         ///< Relax: what sleeps is moved tensor by tensor, without a saver
  std::int64_t weights_on_host = 0;                       ///< sets of a rank's weights with a pinned copy on the host each
  Bytes memory_margin = 0;           ///< the saver that pauses the process takes no memory that would leave less of the GPU free
  bool overlap_grad_reduce = false;  ///< gradients are reduced bucket by bucket; otherwise a buffer is one bucket
  bool pads_experts = true;          ///< with expert_capacity: experts with fewer rows are filled up to it
  bool activation_fusion = true;     ///< gated activations are one kernel
  bool bias_dropout_fusion = true;   ///< bias, dropout and residual sum are one kernel
  bool defer_wgrad = false;          ///< gradients of the output layer's matrix are made at the end of a step
  std::int64_t deferral_limit = 0;   ///< ... of so many micro-batches; 0: of all
  bool input_regather = false;       ///< adapters keep this rank's part of the sequence and gather it again
  MegatronFsdpStrategy fsdp = MegatronFsdpStrategy::off;
  std::int64_t communication_unit = 0;  ///< with fsdp: elements that are gathered ahead and wait to be reduced; 0: Megatron's own
  bool fsdp_double_buffer = false;      ///< with fsdp: buckets of layers are two that stay
  Fp8Recipe fp8 = Fp8Recipe::none;
  bool fp8_parameters = false;  ///< matrices of the layers are parameters in 8 bits
  bool fp8_transposes = true;   ///< the GPU multiplies 8 bits only with both factors along the sum: follows from the GPU, no knob
  bool fp8_on_blackwell = false;                       ///< as it, no knob
  std::int64_t fp8_wide_first = 0, fp8_wide_last = 0;  ///< layers of the model that stay in 16 bits
  bool router_padding = false;  ///< experts' rows are padded for 8 bits by the router; otherwise by a copy in front of them
  bool operator==(const Megatron&) const = default;
};

/// Operators of linkedin/Liger-Kernel in place of the modeling file's.
struct Liger {
  bool rope = false, rms_norm = false, swiglu = false;
  std::string version;  ///< "": the newest that is known
  bool operator==(const Liger&) const = default;
};

/// Fused operators of foundation-model-stack/fms-acceleration in place of the modeling file's and peft's.
struct Foak {
  bool rope = false, rms_norm = false;
  bool lora = false;  ///< one function for the products of queries, keys and values with their adapters, one for the output's
  bool operator==(const Foak&) const = default;
};

/// How the linear layers of a frozen base are stored: as all else, as bitsandbytes packs them, or as GPTQ does.
enum class BaseFormat : std::uint8_t { full, nf4, fp4, int8, gptq };

/// A frozen base whose linear layers are quantised (transformers' BitsAndBytesConfig, or a GPTQ checkpoint); its output layer,
/// embeddings and norms are not.
struct QuantisedBase {
  BaseFormat format = BaseFormat::full;
  bool double_quant = false;    ///< 4 bits: the scales of the blocks are quantised themselves
  DType compute = DType::fp32;  ///< 4 bits: what its matrix products compute in
  bool prepare_kbit = false;    ///< peft's prepare_model_for_kbit_training: what is not packed is cast to fp32
  bool casts_heads = false;     ///< TRL behind it: embeddings and output layer are bf16 again, norms stay fp32
  bool whole = false;           ///< FSDP2, 4 bits: packed matrices are stored in bytes, and whole on every rank
  std::int64_t bits = 4;        ///< GPTQ
  std::int64_t group = 128;     ///< GPTQ: inputs that share a scale and a zero; 0: all of a layer
  std::int64_t outliers = 0;    ///< int8: columns of every input that have a number of 6 or more
  std::string version;          ///< release of bitsandbytes; empty: the newest that is described
  bool operator==(const QuantisedBase&) const = default;
};

/// Low-rank adapters (LoRA, as huggingface/peft runs them) beside linear layers. What they stand beside is frozen.
struct Lora {
  AdapterKind kind = AdapterKind::lora;
  std::int64_t rank = 0;  ///< 0: none, and all parameters are trained; of LitGPT's prefixes: their tokens; of IA3: 1
  /// Of transformers' models by peft's rule: ends of modules' names, such as q_proj. Of other kernel sets their framework's
  /// words. Empty: every linear layer but the head, unless one of the next two says otherwise.
  std::vector<std::string> targets;
  std::string targets_matching;              ///< a regular expression for whole names
  bool targets_by_type = false;              ///< peft's defaults for the model_type
  std::vector<std::string> exclude;          ///< exclude_modules: ends of names
  std::string exclude_matching;              ///< ... as an expression
  std::vector<std::int64_t> layers;          ///< layers_to_transform; empty: all
  std::vector<std::string> layers_pattern;   ///< what stands in front of a layer's number; empty: anything
  std::vector<std::string> modules_to_save;  ///< trained copies beside the frozen modules
  std::int64_t alpha = 16;                   ///< the factor is alpha / rank: no memory
  double dropout = 0;                        ///< rate in front of the adapters
  AdapterFormat format = AdapterFormat::fp32;
  AdapterScope scope = AdapterScope::all;
  bool masked_gates = false;       ///< Megatron's linear attention: gates of what the adapter gives are set to zero in place
  std::int64_t frozen_copies = 0;  ///< adapters beside the trained ones that get no gradient: AgileRL's reference policy
  bool dora = false;               ///< weight-decomposed: a trained magnitude for every row of the matrix
  bool own_units = true;           ///< FSDP1: every adapter is a unit; false: a part of its layer's flat parameter
  bool layered_summon = false;     ///< FSDP1, weight update: one unit's parameters are gathered at a time, not all at once
  QuantisedBase base;
  bool operator==(const Lora&) const = default;
};

/// DeepSpeed's `zero_optimization`, with its defaults. Numbers of elements, as in its file.
struct Zero {
  std::int64_t stage = 3;
  std::int64_t reduce_bucket = 500'000'000, allgather_bucket = 500'000'000;
  std::int64_t prefetch_bucket = 50'000'000;        ///< stage 3: gathered ahead with every module
  std::int64_t persistence_threshold = 100'000;     ///< stage 3: smaller parameters stay gathered
  std::int64_t max_live = 1'000'000'000;            ///< stage 3: nothing is gathered ahead above so many gathered elements
  std::int64_t max_reuse_distance = 1'000'000'000;  ///< stage 3: what is used again within so many stays gathered
  std::int64_t sub_group = 1'000'000'000;           ///< stage 3: the step goes through shards in groups of so many
  bool overlap_comm = false;                        ///< stages 1 and 2: a second bucket
  bool contiguous_gradients = true;
  bool offload_optimizer = false, offload_parameters = false;  ///< between uses they lie on the host
  ZeroLoad load = ZeroLoad::split;                             ///< stage 3
  bool operator==(const Zero&) const = default;
};

/// What a framework's own loop does to the model and its engine, whatever its settings say. The front end sets it.
struct TrainingLoop {
  std::string_view name = "PyTorch";       ///< for people
  bool of_framework = false;               ///< an RL framework's; false: the user's own, on PyTorch alone
  std::string_view teachers_since = {};    ///< the first release in which a teacher's log-probs can be part of a step; "": none
  bool serves_rewards = false;             ///< reward models are servers
  bool serves_at_once = false;             ///< servers beside a trainer are awake together; teachers start before the trainer
  bool serves_stored = false;              ///< new weights are converted into what the servers' checkpoint is stored in
  bool pads_batches = false;               ///< micro-batches of padded sequences, in forward-only passes too
  bool packs_pairs = false;                ///< a reward model learns from packed pairs
  bool budget_by_gpu = false;              ///< a budget that nobody wrote counts the tokens of one GPU of a context
  bool has_archon = false;                 ///< the engine Archon is its own
  bool fuses_head = false;                 ///< it can put its own output layer in place of transformers' (verl_fused and its kin)
  bool offloads_activations = false;       ///< it has its own way to keep activations on the host
  bool packs = false;                      ///< sequences share a micro-batch and are not cut: its budget holds the longest
  std::string_view without_budget = "";    ///< what is done where a micro-batch has no budget; "": nothing that need be said
  bool embedding_gradient = false;         ///< adapters: it asks for the gradient of the embedding's output, checkpoints or not
  bool packed_embedding_gradient = false;  ///< ... beside a packed base too; of plain PyTorch recomputation decides
  bool adapters_apart = false;             ///< forward-only passes compute an adapter's product by itself
  bool reshards_root = false;              ///< FSDP1: behind a forward-only pass
  bool states_by_mesh = false;             ///< FSDP1: state_dict() makes DTensors, for which each tensor is copied whole
  bool loads_on_gpu = false;               ///< FSDP2: every rank loads the whole model on its GPU, unless memory_efficient_load
  bool has_towers = false;                 ///< FSDP: vision-language models are trained with their towers
  bool joins_images_itself = false;        ///< its own forward pass joins images and text, and stands in transformers' place
  bool exchanges_flat = false;             ///< Ulysses: heads are exchanged on flat packed sequences
  bool positions_by_row = false;           ///< positions are made for every sequence of a batch
  bool moves_parameters = false;  ///< what lies on the host between phases is moved there; else a saver pauses the whole process
  bool moves_optimizer = false;   ///< Megatron: the optimizer too
  bool wakes_at_once = false;   ///< parameters and states come together, in front of a step's first pass, and go behind the last
  bool sends_asleep = false;    ///< a weight update takes parameters that lie on the host from there, one by one
  bool empties_cache = false;   ///< behind loading and behind a weight update, so that servers find the memory free
  bool learns_at_once = false;  ///< parameters stay from the log-probs to the last update, and nothing is given back between
  bool loads_behind_servers = false;      ///< a base that is not packed is loaded when the servers have started
  bool generates_while_training = false;  ///< on GPUs of their own servers and trainers work at the same time
  bool saves_plainly = true;              ///< what is trained is saved as it is; false: gathered and cast as for the servers
  // the weight update
  std::string_view facts = "";    ///< whose facts say how weights reach the servers (models/engines); "": there is no update
  bool adapters_update = false;   ///< adapters go to the servers by themselves
  bool summons_adapters = false;  ///< ... from the host, for which FSDP1 gathers the parameters around them
  bool updates_by_files = false;  ///< adapters reach the servers in files that these read on the host: nothing is counted
  bool ipc = false;               ///< servers on the same GPUs map the trainer's buckets; else two buffers take turns
  bool flat_buckets = false;      ///< ... which are whole parameters, and then one tensor of them; over NCCL they go as they are
  // Megatron
  bool runs_megatron = false;      ///< roles of RL may run on Megatron
  bool pads_to_pages = false;      ///< packed tokens are padded to pages of 256 that the ranks can split
  bool pads_vocab = true;          ///< embedding and output layer have rows that all ranks can split
  bool balances_stages = false;    ///< layers are shared out by their parameters
  bool fills_pipeline = false;     ///< a step has at least two micro-batches for every stage, and a multiple of the stages
  bool loss_by_sequence = false;   ///< its loss copies each sequence out of the padding and takes rows in chunks
  bool actor_loss = false;         ///< its loss of an actor stands behind the model, with a value head for critics
  bool adapters_outside = false;   ///< adapters lie outside of the flat buffers
  bool says_loss = false;          ///< the loss behind the model is the one that cross_entropy says
  bool host_optimizer = false;     ///< an optimizer on the host runs beside a trainer that is paused
  bool pauses_whole = false;       ///< what a saver pauses is all that PyTorch has, and communicators go with it
  bool gathers_buckets = false;    ///< weights go to the servers in buckets of Megatron's own parameters
  bool checkpoint_engine = false;  ///< ... by an engine for it, too; servers on other GPUs of a machine may map the buckets
  bool operator==(const TrainingLoop&) const = default;
};

/// Settings of a role that trains, or that only computes log-probs or values with a training engine.
/// Images in the batches of a model with a vision tower. All have one size.
struct Vision {
  std::int64_t images = 0;             ///< of a sequence, or of a packed micro-batch; 0: unstated
  bool fill = false;                   ///< a packed micro-batch has as many of them as its tokens hold
  std::int64_t held = 0;               ///< images whose pixels lie on the device while a phase runs; 0: the micro-batch's alone
  std::int64_t height = 0, width = 0;  ///< pixels, as the processor hands them on
  TowerTraining train = TowerTraining::all;
  bool operator==(const Vision&) const = default;
};

/// The architecture of a further model once it was looked up: a server's draft, a trainer's reference. Its name tells such models
/// apart.
struct FoundModel {
  std::shared_ptr<const Architecture> architecture;
  bool operator==(const FoundModel&) const { return true; }
};

struct Trainer {
  Layout layout;
  Framework framework = Framework::areal;
  std::string framework_version;
  TrainingLoop loop;
  Kernels kernels = Kernels::hf_flash;
  std::string transformers_version;  ///< whose layers and loss the kernel sets hf_* are; empty: the newest that is described
  Experts experts = Experts::automatic;
  LinearAttention linear_attention = LinearAttention::torch;
  Liger liger;
  Foak foak;
  DType storage = DType::fp32;  ///< of parameters (and so of gradients and optimizer states) between steps
  DType compute = DType::bf16;
  DType reduce = DType::fp32;  ///< of the gradient reduction
  /// FSDP's policy names param_dtype, reduce_dtype. Without, every parameter computes in the format that it is stored in, and its
  /// gradient is reduced in the format that it comes in.
  bool cast_parameters = true, cast_gradients = true;
  bool cast_inputs = true;           ///< FSDP2, with param_dtype: a unit's arguments are cast to it (cast_forward_inputs)
  std::optional<DType> output = {};  ///< FSDP2: what a unit returns is cast to it (output_dtype); nothing: it stays as it comes
  bool autocast = false;             ///< torch.autocast around the forward pass
  DType autocast_format = DType::bf16;  ///< its dtype, bf16 or fp16
  Recompute recompute = Recompute::full;
  bool reentrant = false;            ///< of the checkpoint
  bool checkpoint_units = false;     ///< FSDP1: it stands around the call of a unit, not inside of the unit
  std::int64_t recompute_every = 1;  ///< one layer of so many is checkpointed, the others keep what they save
  OptimizerKind optimizer = OptimizerKind::adamw;
  OptimizerForm optimizer_form = OptimizerForm::foreach;
  std::int64_t optimizer_rank = 128;  ///< APOLLO: of the projections
  bool amsgrad = false;               ///< Adam and AdamW: the largest second moment so far is a third state
  double weight_decay = -1;           ///< below 0: what the optimizer's class has
  bool nesterov = false;              ///< sgd_momentum
  bool clip = true;
  Lora lora;
  bool reshard_after_forward = true;  ///< of the layers; of the root too unless root_reshard is false
  bool root_reshard = true;
  std::int64_t reshard_ranks = 0;  ///< what is resharded is split over so many ranks until backward; 0: as between steps
  bool forward_prefetch = false;   ///< every layer gathers the next one's parameters before it computes
  BackwardPrefetch backward_prefetch = BackwardPrefetch::pre;  ///< FSDP1
  bool limit_all_gathers = true;                  ///< FSDP1: the CPU waits for a freed unit before it gathers two more
  bool use_orig_params = false;                   ///< FSDP1: the optimizer sees parameters, not flat shards
  bool wrap_embedding = true, wrap_head = false;  ///< a sharded unit of their own
  bool wrap_norm = false;                         ///< the final norm shares the unit of the output layer
  bool reshard_last = true;                       ///< false: the last layer (and what is behind it) stays gathered until backward
  bool gradient_sync_every_micro_batch = true;    ///< false: set_requires_gradient_sync(False), no_sync but for the last
  bool step_every_micro_batch = false;            ///< an optimizer step behind each micro-batch, nothing is accumulated
  bool keep_gradients = false;                    ///< zero_grad(set_to_none=False): gradients stay from step to step
  bool gradient_as_bucket_view = false;           ///< DDP: gradients lie in the buckets
  std::int64_t bucket_cap_mb = 0;                 ///< DDP: MiB of a bucket; 0: 25, the first one 1
  bool static_graph = false;                      ///< DDP
  bool find_unused_parameters = false;            ///< DDP: buckets stay as the constructor cut them
  bool offload_parameters = false;                ///< to the host between phases
  bool offload_optimizer = false;
  bool cpu_offload_policy = false;  ///< FSDP2's CPUOffloadPolicy, FSDP1's CPUOffload: parameters, states and step are the host's
  LossHead head = LossHead::areal_compiled;
  ReferencePass reference = ReferencePass::none;
  std::string reference_model;                  ///< with a second model: which, as the user wrote it; "": the policy's own
  FoundModel other;                             ///< of reference_model
  std::optional<DType> reference_format = {};   ///< of a second model's parameters; nothing: the policy's
  std::int64_t tokens_per_micro_batch = 16384;  ///< packed tokens of one data-parallel rank, before Ulysses divides them
  std::int64_t sequences_per_micro_batch = 0;   ///< > 0: padded batches of sequence_tokens instead of packing
  std::int64_t sequence_tokens = 0;
  std::int64_t micro_batches = 0;                   ///< of a step; 0: derived from the batch
  std::int64_t logprob_tokens_per_micro_batch = 0;  ///< of forward-only passes; 0: tokens_per_micro_batch
  bool log_prob_pass = true;                        ///< false: log-probs are those of the training pass, or of another role
  Bytes empty_cache_below = 0;                      ///< free on the GPU: then the cache is emptied before every collective
  std::int64_t logits_to_keep = 0;                  ///< > 0: only so many tokens of a sequence reach the head
  bool padding_mask = false;                        ///< batches carry a 2-D attention mask
  std::int64_t replicas = 1;                        ///< HSDP: shard groups that hold the same parameters
  bool keep_outputs = false;                        ///< the training loop keeps the model's output through the backward pass
  bool kv_cache = false;                            ///< generator: keys and values stay (use_cache); else all is computed again
  bool sdpa_math = false;                           ///< SDPA is forced to its math kernel
  RmsNorm rms_norm = RmsNorm::fused;                ///< of torchtitan's models
  bool tree_training = false;                       ///< Archon: sequences with a common beginning share its tokens
  bool repeat_kv = false;                           ///< torchtitan: keys and values are copied to all heads before attention
  bool compile = false;                             ///< torchtitan, Archon: every TransformerBlock under torch.compile
  Float8 float8 = Float8::none;                     ///< torchtitan: matrices of every TransformerBlock multiply in 8 bits
  bool float8_all_gather = false;                   ///< FSDP2 gathers those matrices in 8 bits (tensorwise alone)
  Zero zero;                                        ///< engine deepspeed
  bool offload_checkpoints = false;                 ///< inputs of checkpointed layers lie on the host until backward
  OffloadActivations offload_activations = OffloadActivations::none;
  bool tiled_mlp = false;              ///< DeepSpeed's TiledMLP: feed-forward blocks run over about `hidden` tokens at a time
  bool memory_efficient_load = false;  ///< AReaL: rank 0 loads on the host and sends, instead of every GPU the whole model
  Megatron megatron;                   ///< engine megatron
  Vision vision;                       ///< of a model with a vision tower
  bool kernel_internals = true;        ///< count buffers inside fused kernels (off to compare with tools that cannot see them)
  bool operator==(const Trainer&) const = default;
};

/// Room for LoRA adapters beside a server's weights, made when it starts.
struct AdapterSlots {
  std::int64_t slots = 0;            ///< adapters that one batch can use; 0: the server takes none
  std::int64_t rank = 0;             ///< that a slot has room for
  std::vector<std::string> targets;  ///< modules that have slots; empty: every linear layer
  bool operator==(const AdapterSlots&) const = default;
};

/// What guesses tokens ahead: the model's own MTP blocks, or a head of another checkpoint.
/// What a server makes of a checkpoint in 16 bits while it loads it: --quantization. fp8 with one scale a matrix is `weights`.
enum class OnlineFormat : std::uint8_t {
  none,
  fp8_per_block,    ///< squares of 128 x 128
  fp8_per_channel,  ///< a scale for every row: SGLang's w8a8_fp8
  mxfp8,            ///< a scale of 8 bits for 32 elements
  experts_int8,     ///< experts alone: int8_per_channel_weight_only
  bitsandbytes      ///< nf4 in blocks of 64
};

enum class DraftMethod : std::uint8_t { auto_, mtp, eagle, eagle3 };

/// Settings of a generation or serving engine.
struct Server {
  Layout layout;  ///< data: replicas of the server
  std::string version;
  double memory_fraction =
      0;  ///< mem_fraction_static (of what is free) or gpu_memory_utilization (of the total); 0: the engine's own choice
  std::int64_t concurrency = 0;     ///< requests in flight that the job asks of all replicas together; 0: unstated
  std::int64_t max_running = 0;     ///< max_running_requests, max_num_seqs; 0: the engine's own
  std::int64_t max_model_len = 0;   ///< context length; 0: the model's
  std::int64_t batched_tokens = 0;  ///< chunked_prefill_size, max_num_batched_tokens; 0: the engine's own
  DType weights = DType::bf16;
  std::optional<DType> kv = DType::bf16;  ///< the cache's format; nothing is `auto`: the engine chooses
  OnlineFormat online = OnlineFormat::none;
  bool kv_token_scales = false;   ///< an fp32 scale for every token, head, and of keys and values: *_per_token_head of vLLM
  bool text_only = false;         ///< a model's towers are not loaded: language_model_only, limit_mm_per_prompt; vLLM
  bool no_images = false;         ///< of a model with a tower of sound too: the one of images is not loaded; vLLM
  bool no_sound = false;          ///< of such a model: the tower of sound is not loaded; vLLM
  bool whole_tower = false;       ///< mm_enable_dp_encoder: ranks share images out, and each has the tower whole; SGLang
  bool as_stored = true;          ///< a quantised checkpoint is served as it lies, `weights` is what the rest has
  bool eager = false;             ///< no CUDA graphs
  double swa_ratio = 0;           ///< swa_full_tokens_ratio; 0: the engine's own
  double state_ratio = 0;         ///< mamba_full_memory_ratio; 0: the engine's own
  bool uniform_windows = false;   ///< sliding-window layers keep all tokens: disable_hybrid_kv_cache_manager, .._swa_memory
  Bytes kv_cache_bytes = 0;       ///< kv_cache_memory_bytes: the cache, whatever the share; 0: the share decides
  std::int64_t total_tokens = 0;  ///< max_total_tokens: most that the cache holds of a replica; 0: what fits; SGLang
  std::int64_t page_tokens = 0;   ///< block_size, page_size; 0: the engine's own
  std::int64_t graph_batch = 0;   ///< largest captured batch: cuda_graph_max_bs, max_cudagraph_capture_size; 0: the engine's own
  std::int64_t draft_tokens = 0;  ///< guessed ahead: num_speculative_tokens; 0: none
  std::int64_t sleep_level = 0;   ///< released between phases on shared GPUs: 0 never, 1, 2
  Bytes offloaded_weights = 0;    ///< cpu_offload_gb: weights of the layers that every GPU leaves in host memory; 0: none
  bool expandable_segments = false;  ///< PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True of the engine's processes
  std::int64_t decode_context = 1;   ///< decode_context_parallel_size: ranks of a tensor group that share a request's cache
  /// Groups of one server's GPUs that attend to requests of their own and share the experts: vLLM data_parallel_size of a model
  /// with experts, of which layout.data is a multiple; SGLang dp_size under enable_dp_attention, which divides layout.tensor
  std::int64_t attention_data = 1;
  std::int64_t redundant_experts = 0;                     ///< ep_num_redundant_experts: copies of experts, of all ranks together
  bool state_buffers = false;                             ///< mamba_scheduler_strategy=extra_buffer: states to write to; SGLang
  bool whole_dense = false;                               ///< moe_dense_tp_size=1: every rank has dense blocks whole; SGLang
  bool head_by_attention = false;                         ///< enable_dp_lm_head: the head is divided as attention is; SGLang
  ExpertExchange exchange = ExpertExchange::collectives;  ///< moe_a2a_backend; SGLang
  std::int64_t draft_steps = 0;                           ///< speculative_num_steps; 0: the engine's own; SGLang
  std::int64_t draft_branches = 0;                        ///< speculative_eagle_topk; 0: the engine's own; SGLang
  bool flashinfer = false;  ///< attention_backend is flashinfer, also where the engine has another; SGLang
  std::string draft_model;  ///< a head that guesses ahead, as the user wrote it; "": the model's own MTP blocks
  DraftMethod draft_method = DraftMethod::auto_;
  FoundModel draft;           ///< of draft_model
  bool share_prompts = true;  ///< responses to one prompt hold its pages once: enable_prefix_caching, the radix cache
  AdapterSlots lora;
  std::int64_t score_chunk = 0;  ///< rows whose log-probs a teacher computes at once: SGLANG_LOGITS_PROCESSER_CHUNK_SIZE; 0: all
  bool pooling = false;          ///< a number for every request in place of tokens: a discriminative reward model
  bool first_engine = false;     ///< vLLM's V0 where a release has both engines: VLLM_USE_V1=0
  bool operator==(const Server&) const = default;
};

struct Role {
  std::string name;  ///< "actor", "ref", "rollout"
  RoleKind kind = RoleKind::actor;
  EngineKind engine = EngineKind::fsdp2;
  std::string model;  ///< as the user wrote it
  std::shared_ptr<const Architecture> architecture;
  std::string beside;          ///< name of the role whose GPUs it shares; "" own GPUs
  std::int64_t first_gpu = 0;  ///< with `beside`: of that role's GPUs the first that it takes, when it takes a part of them
  bool in_process = false;     ///< with `beside`: shares the process (verl's workers), so one context and one allocator
  Trainer trainer;             ///< when the engine trains
  Server server;               ///< when the engine serves
  constexpr bool serves() const { return engine == EngineKind::sglang || engine == EngineKind::vllm; }
  const Layout& layout() const { return serves() ? server.layout : trainer.layout; }
  Layout& layout() { return serves() ? server.layout : trainer.layout; }
  /// Of a server: groups of GPUs with requests and a cache of their own.
  constexpr std::int64_t cache_groups() const {
    const std::int64_t groups = server.layout.data * (engine == EngineKind::sglang ? server.attention_data : 1);
    return groups > 1 ? groups : 1;
  }
};

struct Cluster {
  std::string gpu;  ///< name in the GPU table
  std::int64_t gpus = 0, gpus_per_node = 8;
  Bytes host_memory = 0;  ///< of a node; 0: unstated
  Bytes others = 0;       ///< device memory that other processes of the machine hold on every GPU
};

struct Sync {
  SyncBy by = SyncBy::none;
  Bytes bucket = kGiB;             ///< weight_chunked_mem_mb, update_weights_bucket_megabytes
  bool bridge = false;             ///< Megatron-Bridge makes the checkpoint's tensors of Megatron's parameters
  bool checkpoint_engine = false;  ///< Relax's: it sends the weights to servers and forward-only roles on GPUs of their own
};

/// Where a value comes from.
struct Origin {
  enum class Kind : std::uint8_t { file, override_, default_, derived };
  Kind kind = Kind::default_;
  Place place;
  std::string because;  ///< for people: "AReaL 1.0.4 default"
  std::string source;   ///< repository, path, version
  /// How the value is made anew when what it rests on changes or becomes known.
  enum class Rule : std::uint8_t {
    none,
    like_the_actor,    ///< of ref and critic: what the actor has
    longest_of_model,  ///< a budget counts sequences until the model is known; each is taken as long as its positions
    whole_pages        ///< a budget is padded to pages of 2 MiB of hidden states (AReaL's Archon)
  };
  Rule rule = Rule::none;
};

struct Job {
  JobKind kind = JobKind::rl;
  std::string name;
  Cluster cluster;
  std::vector<Role> roles;
  Sync sync;
  std::int64_t prompt_tokens = 0, response_tokens = 0;  ///< longest, per request
  std::int64_t sequences_per_step = 0;                  ///< of the whole job (prompts * samples)
  std::int64_t samples_per_prompt = 0;                  ///< responses to one prompt, which share its cache; 0: unstated
  /// Kinds of roles in the order in which a step asks them for log-probs or values; the others follow in the order of `roles`.
  std::vector<RoleKind> pass_order;
  bool servers_start_first = false;       ///< before any trainer loads its model
  bool expandable_segments = false;       ///< PYTORCH_CUDA_ALLOC_CONF of the trainers
  std::map<std::string, Origin> origins;  ///< by dotted key: "actor.tokens_per_micro_batch"

  const Role* role(std::string_view name) const;
  Role* role(std::string_view name);
};

}  // namespace oomplan
