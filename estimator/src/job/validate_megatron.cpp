#include "job/validate_megatron.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "catalog/architecture.hpp"
#include "catalog/facts.hpp"
#include "job/follow.hpp"
#include "job/knobs.hpp"
#include "job/limits.hpp"
#include "job/megatron_losses.hpp"
#include "job/model_makers.hpp"
#include "job/names.hpp"
#include "job/validate_vision.hpp"
#include "layout/letters.hpp"

namespace oomplan {
namespace {

/// Knobs of other training engines, or of what is not described with this one.
constexpr std::array<std::string_view, 61> kForeign{"reference",
                                                    "reference_model",
                                                    "reference_format",
                                                    "reshard_after_forward",
                                                    "root_reshard",
                                                    "reshard_ranks",
                                                    "forward_prefetch",
                                                    "backward_prefetch",
                                                    "limit_all_gathers",
                                                    "use_orig_params",
                                                    "wrap_embedding",
                                                    "wrap_head",
                                                    "wrap_norm",
                                                    "reshard_last",
                                                    "gradient_sync_every_micro_batch",
                                                    "step_every_micro_batch",
                                                    "gradient_as_bucket_view",
                                                    "recompute_every",
                                                    "offload_checkpoints",
                                                    "offload_activations",
                                                    "tiled_mlp",
                                                    "keep_gradients",
                                                    "bucket_cap_mb",
                                                    "replicas",
                                                    "head",
                                                    "logits_to_keep",
                                                    "padding_mask",
                                                    "keep_outputs",
                                                    "sdpa_math",
                                                    "rms_norm",
                                                    "repeat_kv",
                                                    "tree_training",
                                                    "compile",
                                                    "float8",
                                                    "float8_all_gather",
                                                    "cpu_offload_policy",
                                                    "autocast",
                                                    "liger",
                                                    "foak",
                                                    "experts",
                                                    "linear_attention",
                                                    "lora.kind",
                                                    "lora.casts_heads",
                                                    "lora.base_whole",
                                                    "vision.images",
                                                    "vision.fill",
                                                    "vision.held",
                                                    "vision.height",
                                                    "vision.width",
                                                    "vision.train",
                                                    "offload",
                                                    "optimizer_rank",
                                                    "amsgrad",
                                                    "nesterov",
                                                    "precision.cast_parameters",
                                                    "precision.cast_gradients",
                                                    "precision.cast_inputs",
                                                    "precision.output",
                                                    "precision.autocast",
                                                    "optimizer_form"};

class Checker {
 public:
  Checker(const Job& job, const Role& role) : job_(job), role_(role) {}

  std::vector<MegatronProblem> run() {
    const Trainer& t = role_.trainer;
    const bool rl = t.loop.runs_megatron;
    if (t.loop.of_framework && !rl)
      add("engine", "megatron", "fsdp2", fmt::format("not supported yet: Megatron under {}", spelling(t.framework)));
    if (role_.kind != RoleKind::trainer && (!rl || role_.kind == RoleKind::reward))
      add("engine", "megatron", "fsdp2", "not supported yet: Megatron");
    if (rl) check_rl(t.loop.name);
    if (!t.megatron.mtp_runs && t.megatron.mtp_layers > 0 && !predicts())
      add("mtp_runs", "false", "true", "Megatron itself calls its blocks of multi-token prediction");
    check_slime();
    check_blocks();
    for (const std::string_view key : kForeign)
      if (const std::string full = fmt::format("{}.{}", role_.name, key);
          find_knob(job_, full).knob != nullptr && written(job_, full) && foreign_to_megatron(role_, key))
        add(key, get(job_, full), "nothing", "it is a setting of other training engines, or not supported yet with Megatron");
    if (t.vision.images > 0 && !sees_images_under_megatron(t) && !written(job_, fmt::format("{}.vision.images", role_.name)))
      add("vision.images", fmt::format("{}", t.vision.images), "none", "not supported yet: a vision tower under Megatron");
    check_formats();
    check_batch();
    check_pipeline();
    check_optimizer();
    check_experts();
    check_fp8();
    check_modules();
    check_deferral();
    if (sees_images_under_megatron(t))
      for (KnobProblem& p : vision_problems(role_)) add(p.knob, std::move(p.found), std::move(p.expected), std::move(p.why));
    for (MegatronProblem& p : megatron_adapter_problems(role_)) out_.push_back(std::move(p));
    for (MegatronProblem& p : megatron_fsdp_problems(role_)) out_.push_back(std::move(p));
    for (MegatronProblem& p : megatron_flex_problems(job_, role_)) out_.push_back(std::move(p));
    return std::move(out_);
  }

 private:
  void add(std::string_view knob, std::string found, std::string expected, std::string why) {
    out_.push_back({std::string(knob), std::move(found), std::move(expected), std::move(why)});
  }
  /// Blocks of multi-token prediction beside an actor's loss: verl's, slime's of 0.3.1 and later, and those of Relax's bridge.
  bool predicts() const {
    const Trainer& t = role_.trainer;
    const bool slime = t.loop.says_loss && (t.megatron.loss == MegatronLoss::slime || made_by_bridge(t));
    return t.megatron.mtp_layers > 0 && (t.loop.actor_loss || slime);
  }
  void check_slime() {
    const Trainer& t = role_.trainer;
    const Megatron& m = t.megatron;
    const bool slime = is_slimes(m.loss), areal = t.loop.loss_by_sequence;
    if (m.loss == MegatronLoss::areal_whole && !areal)
      add("cross_entropy", "areal_whole", "te, native, unfused or slime", "it is the loss of AReaL before 0.5.0");
    if (m.loss == MegatronLoss::verl_fused && !t.loop.actor_loss)
      add("cross_entropy", "verl_fused", "te, native, unfused or slime",
          "it is a setting of verl's Megatron (use_fused_kernels)");
    if (m.loss == MegatronLoss::verl_undivided && !t.loop.actor_loss)
      add("cross_entropy", "verl_undivided", "te, native, unfused or slime", "it is the loss of verl's Megatron before 0.6");
    if (m.loss == MegatronLoss::verl_undivided && m.core_release != CoreRelease::v0_12)
      add("cross_entropy", "verl_undivided", "core_release: \"0.12\" beside it",
          "verl before 0.6, whose loss it is, runs on Megatron-core 0.12");
    if (m.loss == MegatronLoss::verl_undivided && m.entropy_loss)
      add("entropy_loss", "true", "false",
          "verl before 0.6 itself fails: the log-probs write over the logits that the entropy's gradient needs (verl #1970)");
    if (m.loss == MegatronLoss::verl_fused && role_.architecture != nullptr && role_.architecture->hidden % 128 != 0)
      add("cross_entropy", "verl_fused", fmt::format("another loss for hidden states of {} columns", role_.architecture->hidden),
          "verl's kernels take multiples of 128 (verl/utils/kernel/kernels.py)");
    if (m.entropy_loss && !t.loop.actor_loss && !slime && !areal)
      add("entropy_loss", "true", "false", "it is a setting of verl's Megatron, and of the loss of slime: cross_entropy: slime");
    const bool by_samples =
        m.loss == MegatronLoss::slime_sliced || m.loss == MegatronLoss::slime_samples || m.loss == MegatronLoss::slime_divided;
    if (m.teacher_topk > 0 && !t.loop.actor_loss && (!by_samples || role_.kind != RoleKind::actor))
      add("teacher_topk", fmt::format("{}", m.teacher_topk), "0",
          "it is a setting of verl's Megatron (forward_kl_topk), and of Relax's actors");
    const auto beside_topk = [&](std::string_view knob, bool set, std::string found) {
      if (set && (m.teacher_topk == 0 || t.loop.actor_loss))
        add(knob, std::move(found), "teacher_topk beside it, of Relax's actors", "it says where those tokens are");
    };
    beside_topk("teacher_in_advantages", m.teacher_in_advantages, "true");
    beside_topk("teacher_rows", m.teacher_rows > 0, fmt::format("{}", m.teacher_rows));
    if (m.labels > 0 && (!t.loop.says_loss || role_.kind != RoleKind::trainer))
      add("labels", fmt::format("{}", m.labels), "0", "it is a setting of Relax's supervised training");
    if (m.labels > 0 && (t.lora.rank > 0 || m.mtp_layers > 0))
      add("labels", fmt::format("{}", m.labels), "0", "not supported yet: classes beside adapters or multi-token prediction");
    if (m.teacher_topk > 0 && m.loss == MegatronLoss::verl_fused)
      add("teacher_topk", fmt::format("{}", m.teacher_topk), "0, or cross_entropy: unfused",
          "not supported yet: distillation by the teacher's most likely tokens beside verl's fused kernels");
    if (m.teacher_alone && m.teacher_topk == 0)
      add("teacher_alone", "true", "teacher_topk beside it", "it says what else is part of that loss");
    const auto of_slime = [&](std::string_view knob, bool set, std::string found, std::string expected) {
      if (set && !slime)
        add(knob, std::move(found), std::move(expected), "it is a setting of slime's loss: cross_entropy: slime");
    };
    of_slime("log_probs_chunk_size", m.log_probs_chunk > 0 && !areal, fmt::format("{}", m.log_probs_chunk), "0");
    const auto of_areal = [&](std::string_view knob, bool set, std::string found) {
      if (set && !areal) add(knob, std::move(found), "nothing", "it is a setting of AReaL's Megatron engine");
    };
    of_areal("fp32_logits", m.fp32_logits, "true");
    if (m.head_chunk > 0 && !areal &&
        (!by_samples || m.loss == MegatronLoss::slime_divided || m.labels > 0 || role_.kind != RoleKind::trainer))
      add("head_chunk_size", fmt::format("{}", m.head_chunk), "nothing",
          "it is a setting of AReaL's Megatron engine, and of Relax's supervised training");
    if (m.head_chunk > 0 && !areal && role_.architecture != nullptr && role_.architecture->tied)
      add("head_chunk_size", fmt::format("{}", m.head_chunk), "0",
          "Relax itself refuses it for a model whose embedding is its output layer");
    if (areal && m.head_chunk > 0 && (!m.fp32_logits || m.entropy_loss))
      add("head_chunk_size", fmt::format("{}", m.head_chunk), "fp32_logits: true beside it, without entropy_loss",
          "AReaL itself asks for it");
    if (m.maker == ModelMaker::verl && areal)
      add("models_by", "verl", "mbridge or megatron-bridge", "verl makes its own models, not AReaL's");
    if (m.maker != ModelMaker::mbridge && !areal && !t.loop.actor_loss && !made_by_bridge(t))
      add("models_by", std::string(spelling(m.maker)), "nothing",
          "it is a setting of AReaL's, Relax's and verl's Megatron engines");
    of_slime("recompute_loss_function", m.recompute_loss, "true", "false");
    of_slime("rollout_temperature", m.rollout_temperature != 1, fmt::format("{}", m.rollout_temperature), "1");
    of_slime("int4_experts", m.int4_experts, "true", "false");
    if (!slime) return;
    if (m.int4_experts && !m.grouped_experts)
      add("int4_experts", "true", "grouped_experts: true beside it", "slime rounds the matrices of grouped products alone");
    if (t.sequences_per_micro_batch > 0 && !t.loop.actor_loss && !t.loop.says_loss)
      add("sequences_per_micro_batch", fmt::format("{}", t.sequences_per_micro_batch), "tokens_per_micro_batch",
          "slime packs sequences");
    const auto not_yet = [&](std::string_view knob, bool found, std::string is, std::string expected) {
      if (found) add(knob, std::move(is), std::move(expected), "not supported yet: it with the loss of slime");
    };
    not_yet("mtp_layers", m.mtp_layers > 0 && !predicts(), fmt::format("{}", m.mtp_layers), "0");
    not_yet("expert_capacity", m.expert_capacity > 0, fmt::format("{}", m.expert_capacity), "none");
    not_yet("fp8_recipe", m.fp8 != Fp8Recipe::none, std::string(spelling(m.fp8)), "none");
    not_yet("defer_embedding_wgrad_compute", m.defer_wgrad, "true", "false");
    not_yet("megatron_fsdp", m.fsdp != MegatronFsdpStrategy::off, "a strategy", "nothing");
  }
  void check_rl(std::string_view who) {
    const Trainer& t = role_.trainer;
    const Megatron& m = t.megatron;
    const auto not_yet = [&](std::string_view knob, bool found, std::string is, std::string expected, std::string_view what) {
      if (found) add(knob, std::move(is), std::move(expected), fmt::format("not supported yet: {} under {}", what, who));
    };
    if (t.sequences_per_micro_batch > 0 && !t.loop.actor_loss && !t.loop.says_loss)
      add("sequences_per_micro_batch", fmt::format("{}", t.sequences_per_micro_batch), "tokens_per_micro_batch",
          fmt::format("{}'s Megatron engine packs sequences", who));
    const bool own = m.loss == MegatronLoss::te || m.loss == MegatronLoss::native || is_slimes(m.loss);
    not_yet("cross_entropy", own && !t.loop.says_loss, std::string(spelling(m.loss)), "nothing", "Megatron's own losses");
    not_yet("transformer_impl", m.impl == TransformerImpl::local, "local", "transformer_engine", "Megatron's own modules");
    not_yet("fp8_recipe", m.fp8 != Fp8Recipe::none, std::string(spelling(m.fp8)), "none", "products in 8 bits");
    not_yet("megatron_fsdp", m.fsdp != MegatronFsdpStrategy::off, "a strategy", "nothing", "Megatron-FSDP");
    if (predicts())
      check_predicted(who);
    else
      not_yet("mtp_layers", m.mtp_layers > 0, fmt::format("{}", m.mtp_layers), "0", "multi-token prediction");
    not_yet("expert_capacity", m.expert_capacity > 0, fmt::format("{}", m.expert_capacity), "none", "a capacity of the experts");
    not_yet("optimizer_cpu_offload", m.host_optimizer && !t.loop.moves_optimizer && !t.loop.host_optimizer, "true", "false",
            "an optimizer on the host");
    not_yet("optimizer_offload_fraction", m.host_optimizer && t.offload_optimizer && m.host_fraction < 1,
            fmt::format("{}", m.host_fraction), "1",
            "a part of the optimizer on the host, and the other there between the phases");
    not_yet("defer_embedding_wgrad_compute", m.defer_wgrad, "true", "false", "deferred gradients");
    if (!t.loop.adapters_outside && !t.loop.actor_loss && !t.loop.says_loss)
      not_yet("lora.rank", t.lora.rank > 0, fmt::format("{}", t.lora.rank), "none", "adapters of Megatron");
    if (!t.loop.pads_vocab && role_.architecture != nullptr && role_.architecture->vocab % t.layout.tensor != 0)
      add("layout", letters(t.layout), fmt::format("ranks that divide a vocabulary of {}", role_.architecture->vocab),
          fmt::format("{}'s models have no padding of the vocabulary", who));
  }
  /// Blocks of multi-token prediction that an actor trains beside its own loss: the decoder and the embedding get no gradient of
  /// theirs.
  void check_predicted(std::string_view who) {
    const Trainer& t = role_.trainer;
    const Megatron& m = t.megatron;
    const auto refuse = [&](std::string_view why) {
      add("mtp_layers", fmt::format("{}", m.mtp_layers), "0", fmt::format("not supported yet: {} under {}", why, who));
    };
    const std::array<std::pair<bool, std::string_view>, 4> beside{
        {{role_.kind != RoleKind::actor && role_.kind != RoleKind::trainer,
          "multi-token prediction of a model that is not trained"},
         {m.loss != MegatronLoss::unfused && !t.loop.says_loss,
          "multi-token prediction beside another loss than the unfused one"},
         {m.teacher_topk > 0, "multi-token prediction beside distillation"},
         {m.core_release == CoreRelease::v0_12, "multi-token prediction of Megatron-core 0.12"}}};
    for (const auto& [is, why] : beside)
      if (is) return refuse(why);
    if (role_.architecture == nullptr) return;
    const Architecture& a = *role_.architecture;
    std::int64_t blocks = 0;
    for (const LayerRun& run : a.mtp.layers) blocks += run.count;
    if (blocks == 0 && t.loop.says_loss) return refuse("blocks of multi-token prediction that the model has not");
    if (blocks == 0)
      return add("mtp_layers", fmt::format("{}", m.mtp_layers), "0",
                 fmt::format("the model has none, and {} itself refuses it (check_mtp_config)", who));
    if (blocks != 1 || m.mtp_layers != 1) return refuse("multi-token prediction of several blocks");
    if (a.runs.back().layer.mixer.kind != MixerKind::attention)
      return refuse("multi-token prediction of models whose last layer is not one of attention");
    if (!m.mtp_runs) return;
    // positions of a row go to a model that takes those of images (mbridge/models/qwen3_vl/rope_utils.py, 10cb17f)
    if (!a.tower.kind.empty() && m.maker == ModelMaker::mbridge && t.sequences_per_micro_batch == 0)
      return add("mtp_layers", fmt::format("{}", m.mtp_layers), "sequences that are padded, or models_by: megatron-bridge",
                 fmt::format("{} itself fails with multi-token prediction of packed sequences in mbridge's model", who));
  }
  /// How blocks of multi-token prediction are trained.
  void check_blocks() {
    const Trainer& t = role_.trainer;
    const Megatron& m = t.megatron;
    if (m.mtp_layers == 0 || !m.mtp_runs) return;
    constexpr const char* kOf = "it is a setting of Relax's and slime's Megatron";
    if (m.mtp_fused_loss && !t.loop.says_loss) add("mtp_fused_loss", "true", "false", kOf);
    const bool bridge = t.loop.says_loss && made_by_bridge(t);
    constexpr const char* kBridge = "it is a setting of Relax's models that Megatron-Bridge makes";
    if (!m.mtp_detached && !bridge) add("mtp_detached", "false", "true", kBridge);
    if (!m.mtp_alone) return;
    const auto refuse = [&](std::string expected, const char* why) { add("mtp_alone", "true", std::move(expected), why); };
    if (!bridge) return refuse("false", kBridge);
    if (role_.kind != RoleKind::trainer) refuse("a role trainer", "Relax itself trains blocks alone in supervised training");
    if (t.lora.rank > 0 || m.head_chunk > 0 || !m.mtp_detached)
      refuse("neither adapters, head_chunk_size nor mtp_detached: false beside it", "Relax itself refuses it");
    if (t.layout.pipeline > 1)
      refuse("one pipeline stage", "not supported yet: multi-token prediction that is trained alone, in stages");
  }
  void check_formats() {
    const Trainer& t = role_.trainer;
    constexpr std::string_view kWhy = "not supported yet: Megatron in other formats than bf16 with fp32 masters";
    if (t.storage != DType::bf16) add("precision.storage", std::string(spelling(t.storage)), "bf16", std::string(kWhy));
    if (t.compute != DType::bf16) add("precision.compute", std::string(spelling(t.compute)), "bf16", std::string(kWhy));
    if (t.reduce != DType::bf16 && t.reduce != DType::fp32)
      add("precision.reduce", std::string(spelling(t.reduce)), "fp32 or bf16", "the flat gradient buffer has one of these");
    if (t.optimizer != OptimizerKind::adamw && t.optimizer != OptimizerKind::adam)
      add("optimizer", std::string(spelling(t.optimizer)), "adamw or adam", "not supported yet: other optimizers of Megatron");
    if (t.kernels != Kernels::transformer_engine)
      add("kernels", std::string(spelling(t.kernels)), "transformer_engine", "Megatron's layers are Transformer Engine's");
  }
  void check_batch() {
    const Trainer& t = role_.trainer;
    if (t.sequences_per_micro_batch > 0 && t.sequence_tokens == 0)
      add("sequence_tokens", "nothing", "tokens of a padded sequence", "");
    if (t.sequences_per_micro_batch == 0 && t.tokens_per_micro_batch == 0)
      add("tokens_per_micro_batch", "nothing", "tokens of a rank in one micro-batch, such as 8k", "");
    if (t.tokens_per_micro_batch > 0 && !kTokenLimit.holds(t.tokens_per_micro_batch))
      add("tokens_per_micro_batch", fmt::format("{}", t.tokens_per_micro_batch),
          fmt::format("{} to {} tokens", kTokenLimit.least, kTokenLimit.most), "");
    if (t.micro_batches > 0 && !kMicroBatchLimit.holds(t.micro_batches))
      add("micro_batches", fmt::format("{}", t.micro_batches),
          fmt::format("{} to {} micro-batches", kMicroBatchLimit.least, kMicroBatchLimit.most), "");
    const std::int64_t tokens = t.sequences_per_micro_batch > 0 ? t.sequence_tokens : t.tokens_per_micro_batch;
    const bool padded = t.loop.pads_to_pages;  // to what the ranks can split
    if (t.megatron.sequence_parallel && !padded && tokens % t.layout.tensor != 0)
      add("sequence_parallel", "true", fmt::format("sequences that {} ranks can split", t.layout.tensor),
          "Megatron splits every sequence evenly");
  }
  void check_pipeline() {
    const Trainer& t = role_.trainer;
    const std::int64_t p = t.layout.pipeline;
    if (p == 1) {
      if (t.megatron.virtual_stages > 1)
        add("virtual_stages", fmt::format("{}", t.megatron.virtual_stages), "1", "the layout has no pipeline");
      return;
    }
    if (t.micro_batches == 0 && job_.sequences_per_step == 0 && !t.loop.fills_pipeline)
      add("micro_batches", "nothing", "micro-batches of a step", "how many are in flight on a stage depends on it");
    if (t.megatron.virtual_stages > 1) check_groups(p);
  }
  /// forward_backward_pipelining_with_interleaving refuses other groups itself.
  void check_groups(std::int64_t stages) {
    const std::int64_t all = micro_batches(), given = role_.trainer.megatron.virtual_group;
    const std::int64_t group = given > 0 ? given : stages;
    if (given > 0 && (given < stages || given > all))
      add("virtual_group", fmt::format("{}", given), fmt::format("{} to {}, stages to micro-batches", stages, all),
          "Megatron itself asks for it");
    else if (all % group > 0 && all % group < stages)
      add("micro_batches", fmt::format("{}", all),
          given > 0 ? fmt::format("a multiple of {}, or at least {} more", given, stages)
                    : fmt::format("a multiple of {}", group),
          "Megatron itself refuses a last group of fewer micro-batches than stages");
  }
  /// Of a step on one data-parallel rank: as given, or from the batch of the job.
  std::int64_t micro_batches() const {
    const Trainer& t = role_.trainer;
    if (t.micro_batches > 0) return t.micro_batches;
    const std::int64_t sequences = ceil_div(job_.sequences_per_step, std::max<std::int64_t>(1, t.layout.data));
    if (t.sequences_per_micro_batch > 0) return ceil_div(sequences, t.sequences_per_micro_batch);
    return ceil_div(sequences * (job_.prompt_tokens + job_.response_tokens), std::max<std::int64_t>(1, t.tokens_per_micro_batch));
  }

  void check_optimizer() {
    const Megatron& m = role_.trainer.megatron;
    if (m.precision_aware && !m.distributed_optimizer)
      add("precision_aware_optimizer", "true", "distributed_optimizer: true", "Megatron itself asks for it");
    if (m.stateless_adam && m.precision_aware)
      add("stateless_adam", "true", "precision_aware_optimizer: false", "slime's StatelessAdam has no masters of its own");
    if (m.stateless_adam && m.host_optimizer)
      add("stateless_adam", "true", "optimizer_cpu_offload: false", "not supported yet: Adam without states on the host");
    if (m.stateless_adam && !m.distributed_optimizer)
      add("stateless_adam", "true", "distributed_optimizer: true",
          "not supported yet: Adam without states that is not distributed");
    if (m.fp32_masters && (!m.precision_aware || m.host_optimizer))
      add("fp32_masters", "true", "precision_aware_optimizer: true beside it, on the GPU",
          "all other masters are in fp32 anyway");
    if (m.host_optimizer && !m.distributed_optimizer)
      add("optimizer_cpu_offload", "true", "distributed_optimizer: true",
          "not supported yet: an optimizer on the host that is not distributed");
    if (!m.host_optimizer && m.host_fraction != Megatron{}.host_fraction &&
        written(job_, fmt::format("{}.optimizer_offload_fraction", role_.name)))
      add("optimizer_offload_fraction", fmt::format("{}", m.host_fraction), "optimizer_cpu_offload: true beside it", "");
    const auto state = [&](std::string_view knob, DType format) {
      if (!m.precision_aware && format != DType::fp32)
        add(knob, std::string(spelling(format)), "fp32", "other formats of Adam's states belong to precision_aware_optimizer");
    };
    state("exp_avg_dtype", m.exp_avg);
    state("exp_avg_sq_dtype", m.exp_avg_sq);
    const std::int64_t ranks = role_.trainer.layout.data * role_.trainer.layout.context;
    if (ranks % m.optimizer_instances != 0)
      add("optimizer_instances", fmt::format("{}", m.optimizer_instances), fmt::format("a number that divides {} ranks", ranks),
          "");
  }
  void check_fp8() {
    const Megatron& m = role_.trainer.megatron;
    if (m.fp8_parameters && m.fp8 == Fp8Recipe::none)
      add("fp8_param_gather", "true", "fp8_recipe beside it", "parameters in 8 bits belong to products in 8 bits");
    if (m.router_padding && m.fp8 == Fp8Recipe::none)
      add("router_padding", "true", "fp8_recipe beside it", "Megatron itself asks for it");
    if (m.fp8_wide_first + m.fp8_wide_last > 0 && m.fp8 == Fp8Recipe::none)
      add(m.fp8_wide_first > 0 ? "bf16_layers_at_start" : "bf16_layers_at_end",
          fmt::format("{}", std::max(m.fp8_wide_first, m.fp8_wide_last)), "fp8_recipe beside it",
          "all layers are in 16 bits anyway");
    if (m.fp8 == Fp8Recipe::none) return;
    check_recipe();
    if (m.fp8_parameters && !m.distributed_optimizer)
      add("fp8_param_gather", "true", "distributed_optimizer: true", "Megatron itself asks for it");
    if (m.host_optimizer && m.fp8_parameters)
      add("fp8_param_gather", "true", "false",
          m.fp8 == Fp8Recipe::delayed ? "not supported yet: parameters in 8 bits with the optimizer on the host"
                                      : "Megatron itself refuses it with the optimizer on the host");
    if (m.fp8 != Fp8Recipe::delayed && m.precision_aware && !m.fp32_masters && !m.host_optimizer)
      add("fp32_masters", "false", "true", "with this fp8_recipe Megatron keeps fp32 masters itself");
  }
  /// What TransformerConfig.__post_init__ refuses (megatron-core 0.16.1), and what is not described of a recipe.
  void check_recipe() {
    const Trainer& t = role_.trainer;
    const Megatron& m = t.megatron;
    const std::string recipe(spelling(m.fp8));
    const auto recomputed = [&](const char* module) {
      return t.recompute == Recompute::selective && std::ranges::find(m.recompute_modules, module) != m.recompute_modules.end();
    };
    if (m.fp8 == Fp8Recipe::delayed) {
      if (recomputed("moe_act") || recomputed("layernorm"))
        add("fp8_recipe", recipe, "another recipe", "Megatron itself recomputes no moe_act and layernorm with delayed scaling");
      if (m.fp8_wide_first + m.fp8_wide_last > 0)
        add("fp8_recipe", recipe, "another recipe", "Megatron itself has no first and last layers in bf16 with delayed scaling");
      if (m.precision_aware && m.fp8_parameters)
        add("fp8_param_gather", "true", "false",
            "not supported yet: delayed scaling's parameters with precision_aware_optimizer");
      if (m.fp32_masters) add("fp32_masters", "true", "false", "with delayed scaling Megatron keeps no fp32 masters itself");
    }
    if (m.fp8 == Fp8Recipe::mxfp8 && m.fp8_parameters)
      add("fp8_param_gather", "true", "false", "not supported yet: parameters in mxfp8");
    if (m.router_padding && m.dispatcher == TokenDispatcher::allgather)
      add("router_padding", "true", "dispatcher: alltoall", "Megatron itself asks for it");
    check_tokens(recipe);
  }
  /// Rows of a product: Transformer Engine's own units, and those in which blocks are gathered in 8 bits.
  void check_tokens(const std::string& recipe) {
    const Trainer& t = role_.trainer;
    const bool gathers = t.megatron.sequence_parallel && t.layout.tensor > 1;
    const std::int64_t all =
        t.sequences_per_micro_batch > 0 ? t.sequences_per_micro_batch * t.sequence_tokens : t.tokens_per_micro_batch;
    const std::int64_t rows = all / std::max<std::int64_t>(1, t.layout.context * (gathers ? t.layout.tensor : 1));
    const std::int64_t own = t.megatron.fp8 == Fp8Recipe::mxfp8 ? 32 : 8;
    if (rows % own != 0)
      add("fp8_recipe", recipe, fmt::format("tokens of a rank that are a multiple of {}, not {}", own, rows),
          "Transformer Engine itself asks for it");
    else if (t.megatron.fp8 == Fp8Recipe::blockwise && gathers && rows % 128 != 0)
      add("fp8_recipe", recipe, fmt::format("tokens of a rank that are a multiple of 128, not {}", rows),
          "not supported yet: what Transformer Engine gathers in 16 bits");
  }
  /// DotProductAttention in Megatron-Bridge's layers (megatron/bridge/models/gpt_provider.py: provide, 2faedbf6).
  void check_local_attention() {
    const Trainer& t = role_.trainer;
    const auto object = [&](std::string expected, std::string why) {
      add("attention", "local", std::move(expected), std::move(why));
    };
    if (!t.loop.says_loss || t.megatron.maker != ModelMaker::megatron_bridge)
      object("transformer_impl: local", "Megatron's own attention goes with its own modules, but under Relax");
    if (t.sequences_per_micro_batch == 0)
      object("padded sequences", "Megatron itself refuses packed sequences without Transformer Engine's attention");
    if (t.layout.context > 1)
      object("a layout without c", "Megatron itself has context parallelism only with Transformer Engine's attention");
  }
  /// Megatron-core's own modules (megatron/core/models/gpt/gpt_layer_specs.py: get_gpt_layer_local_spec).
  void check_modules() {
    const Trainer& t = role_.trainer;
    const Megatron& m = t.megatron;
    const auto belongs = [&](std::string_view knob, bool found, bool otherwise) {
      if (found != otherwise)
        add(knob, found ? "true" : "false", "transformer_impl: local beside it",
            "Transformer Engine's attention has a softmax of its own");
    };
    if (m.impl != TransformerImpl::local && m.attention == TeAttention::local) {
      check_local_attention();
      return;
    }
    if (m.impl != TransformerImpl::local) {
      belongs("masked_softmax_fusion", m.masked_softmax_fusion, true);
      belongs("attention_softmax_in_fp32", m.softmax_in_fp32, false);
      belongs("query_key_layer_scaling", m.query_key_layer_scaling, false);
      return;
    }
    if (t.layout.context > 1)
      add("transformer_impl", "local", "transformer_engine",
          "Megatron itself has context parallelism only with Transformer Engine's attention");
    if (m.attention != TeAttention::fused)
      add("attention", std::string(spelling(m.attention)), "nothing", "it chooses among Transformer Engine's kernels");
    if (m.fp8 != Fp8Recipe::none)
      add("fp8_recipe", std::string(spelling(m.fp8)), "none", "products in 8 bits are Transformer Engine's");
    if (role_.trainer.lora.rank > 0)
      add("lora.rank", fmt::format("{}", role_.trainer.lora.rank), "none",
          "not supported yet: adapters beside Megatron's own modules");
    if (m.mtp_layers > 0)
      add("mtp_layers", fmt::format("{}", m.mtp_layers), "0",
          "not supported yet: multi-token prediction of Megatron's own modules");
  }
  /// megatron/core/model_parallel_config.py (__post_init__); Megatron's own linear layers look for the output layer's buffer.
  void check_deferral() {
    const Trainer& t = role_.trainer;
    const Megatron& m = t.megatron;
    const auto refuse = [&](std::string expected, std::string why) {
      add("defer_embedding_wgrad_compute", "true", std::move(expected), std::move(why));
    };
    if (!m.defer_wgrad && m.deferral_limit > 0)
      add("wgrad_deferral_limit", fmt::format("{}", m.deferral_limit), "defer_embedding_wgrad_compute: true beside it", "");
    if (!m.defer_wgrad) return;
    if (t.layout.pipeline == 1) refuse("a layout with a pipeline", "Megatron itself asks for it");
    if (!m.gradient_accumulation_fusion) refuse("gradient_accumulation_fusion: true", "Megatron itself asks for it");
    if (m.impl == TransformerImpl::local) refuse("false", "Megatron's own linear layers do not run with it");
    if (m.mtp_layers > 0) refuse("false", "not supported yet: deferred gradients with multi-token prediction");
    if (t.lora.rank > 0) refuse("false", "the output layer beside adapters has no gradient");
  }
  void check_experts() {
    const Trainer& t = role_.trainer;
    const Megatron& m = t.megatron;
    if (m.dispatcher == TokenDispatcher::allgather && m.expert_capacity > 0)
      add("dispatcher", "allgather", "alltoall", "not supported yet: a capacity of the experts with this dispatcher");
    if (m.dispatcher == TokenDispatcher::allgather && t.recompute != Recompute::none)
      add("dispatcher", "allgather", "alltoall", "not supported yet: recomputation with this dispatcher");
    if (!m.grouped_experts && t.recompute == Recompute::selective &&
        std::find(m.recompute_modules.begin(), m.recompute_modules.end(), "moe_act") != m.recompute_modules.end())
      add("grouped_experts", "false", "true", "Megatron itself recomputes this activation of grouped experts only");
    if (m.shared_expert_overlap && m.dispatcher != TokenDispatcher::alltoall)
      add("shared_expert_overlap", "true", "dispatcher: alltoall", "the shared experts overlap with this dispatcher only");
    if (m.shared_expert_overlap && t.recompute == Recompute::selective &&
        std::ranges::find(m.recompute_modules, "shared_experts") != m.recompute_modules.end())
      add("shared_expert_overlap", "true", "false", "Megatron itself refuses to recompute shared experts beside the exchange");
    if (m.sinkhorn && m.expert_capacity > 0) add("sinkhorn", "true", "false", "Megatron itself drops no tokens with it");
    if (m.expert_capacity > 0 && m.expert_imbalance > 1)
      add("expert_imbalance", fmt::format("{}", m.expert_imbalance), "1", "with expert_capacity every expert has as many rows");
    if (m.expert_capacity == 0 && m.pads_experts != Megatron{}.pads_experts &&
        written(job_, fmt::format("{}.pad_expert_input", role_.name)))
      add("pad_expert_input", "false", "expert_capacity beside it", "there is no capacity to pad to");
    if (m.mtp_layers > 0 && m.mtp_runs && t.recompute == Recompute::full && m.recompute_method == RecomputeMethod::uniform &&
        m.recompute_layers != 1)
      add("recompute_layers", fmt::format("{}", m.recompute_layers), "1",
          "Megatron itself asks for it with multi-token prediction");
  }

  const Job& job_;
  const Role& role_;
  std::vector<MegatronProblem> out_;
};

}  // namespace

bool foreign_to_megatron(const Role& role, std::string_view knob) {
  // RL frameworks put what Megatron has on the host between phases
  if (knob == "offload" && role.trainer.loop.of_framework) return false;
  constexpr std::array<std::string_view, 4> kOfImages{"vision.images", "vision.fill", "vision.height", "vision.width"};
  const Trainer& t = role.trainer;
  if (sees_images_under_megatron(t) && std::find(kOfImages.begin(), kOfImages.end(), knob) != kOfImages.end()) return false;
  if (knob == "vision.train" && made_by_bridge(t)) return false;
  return std::find(kForeign.begin(), kForeign.end(), knob) != kForeign.end();
}

std::vector<MegatronProblem> megatron_problems(const Job& job, const Role& role) { return Checker(job, role).run(); }

}  // namespace oomplan
