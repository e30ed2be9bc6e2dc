#include <fmt/format.h>
#include <oomplan/units/bytes.hpp>

#include "frontends/areal/meaning_roles.hpp"

namespace oomplan::areal {
namespace {

constexpr std::string_view kFsdpEngine = "areal/engine/fsdp_engine.py: fully_shard, reshard_after_forward=True";
constexpr std::string_view kMegatronEngine = "areal/engine/megatron_engine.py";

/// Facts of one role; `key` leads its facts, `path` its settings.
class TrainerTeller {
 public:
  TrainerTeller(Teller& t, const BuiltRole& role)
      : t_(t), role_(role), path_(role.path), key_("roles." + role.name), lora_(t.flag(at("use_lora"))) {}

  void run() {
    t_.take(fact("model"), at("path"));
    const bool own_string = t_.since("1.0.3");
    t_.derived(fact("engine"), engine(), own_string ? "backend string" : "allocation_mode", string_path());
    tell_layout();
    trains_ = t_.has(at("optimizer"));
    switch (role_.part.backend) {
      case Backend::megatron:
        tell_megatron();
        break;
      case Backend::archon:
        tell_archon();
        break;
      default:
        tell_fsdp();
    }
    tell_optimizer();
    tell_recompute();
    t_.code(fact("activation_offload"), false, "AReaL has none");
    tell_micro_batch();
    tell_rest();
    tell_place();
  }

 private:
  std::string at(std::string_view name) const { return fmt::format("{}.{}", path_, name); }
  std::string fact(std::string_view name) const { return fmt::format("{}.{}", key_, name); }
  std::string string_path() const { return t_.since("1.0.3") ? at("backend") : "allocation_mode"; }
  bool megatron() const { return role_.part.backend == Backend::megatron; }
  std::string engine() const { return role_.part.backend == Backend::fsdp ? "fsdp2" : std::string(spelling(role_.part.backend)); }

  void tell_layout() {
    const Layout& l = role_.part.layout;
    const std::string from = string_path();
    t_.derived(fact("gpus"), l.world(), "product of d,t,p,c of the backend string; e never multiplies", from);
    const auto degree = [&](const char* name, std::int64_t value) {
      t_.derived(fact(fmt::format("layout.{}", name)), value, "backend string; omitted letters are 1", from);
    };
    degree("dp", l.data);
    degree("tp", l.tensor);
    degree("pp", l.pipeline);
    degree("cp", l.context);
    degree("ep", l.expert);
    degree("etp", l.expert_tensor);
    degree("edp", role_.part.expert_data);
  }

  void tell_fsdp() {
    t_.code(fact("layout.cp_kind"), "ulysses", "areal/engine/fsdp_engine.py");
    t_.code(fact("sharding"), "full_shard", kFsdpEngine);
    const Layout& l = role_.part.layout;
    t_.derived(fact("shard_group"), l.data * l.context, "d*c", string_path());
    // Parameters were stored in `dtype` until optimizer_dtype came (areal-project/AReaL, pull request 1369, 2.0.0).
    const std::string storage = at(t_.knows(at("optimizer_dtype")) ? "optimizer_dtype" : "dtype");
    t_.take(fact("param_dtype"), storage);
    t_.take(fact("compute_dtype"), at("dtype"));
    t_.derived(fact("grad_dtype"), t_.text(storage), "FSDP2 gradient shard has the storage dtype", storage);
    t_.take(fact("reduce_dtype"), at("grad_reduce_dtype"));
    states_ = t_.text(storage);
    t_.code(fact("separate_master_weights"), false, "storage is the master");
    t_.take(fact("param_offload"), at("fsdp.offload_params"), false);
    t_.take(fact("optimizer_offload"), at("fsdp.per_layer_optim_step"), false);
    t_.take(fact("load_on_cpu_rank0"), at("fsdp.memory_efficient_load"), false);
  }

  void tell_megatron() {
    const Layout& l = role_.part.layout;
    t_.code(fact("layout.cp_kind"), "ring_p2p", "Megatron context parallel");
    t_.code(fact("layout.sequence_parallel"), l.tensor > 1, fmt::format("{}: on iff t>1", kMegatronEngine));
    t_.take(fact("layout.vpp"), at("megatron.virtual_pipeline_parallel_size"));
    const bool distributed = t_.flag(at("megatron.ddp.use_distributed_optimizer"), true) && !lora_;
    t_.derived(fact("sharding"), distributed ? "zero1_distributed_optimizer" : "none", "megatron.ddp.use_distributed_optimizer",
               at("megatron.ddp.use_distributed_optimizer"));
    t_.derived(fact("shard_group"), l.data * l.context, "d*c for dense, edp for experts", string_path());
    t_.take(fact("param_dtype"), at("dtype"));
    t_.take(fact("compute_dtype"), at("dtype"));
    const bool wide = t_.flag(at("megatron.ddp.grad_reduce_in_fp32"), true);
    t_.derived(fact("grad_dtype"), wide ? "float32" : t_.text(at("dtype")),
               fmt::format("megatron.ddp.grad_reduce_in_fp32 = {}", wide ? "True" : "False"),
               at("megatron.ddp.grad_reduce_in_fp32"));
    t_.take(fact("wrap_with_ddp"), at("megatron.wrap_with_ddp"));
    tell_megatron_optimizer();
    t_.code(fact("separate_master_weights"), true, "Megatron mixed-precision optimizer");
    t_.derived(fact("fp8"),
               t_.has(at("megatron.fp8_config")) ? value_or_null(at("megatron.fp8_config.mode")) : FactValue(nullptr),
               "megatron.fp8_config", at("megatron.fp8_config"));
    for (const auto* name : {"lm_head_loss_chunk_size", "enable_chunked_logits", "enable_fp32_lm_head"})
      t_.take(fact(name), at(fmt::format("megatron.{}", name)));
    t_.take(fact("bridge"), at("megatron.bridge_type"), "mbridge");
    t_.take(fact("moe_dispatcher"), at("megatron.moe_token_dispatcher_type"), FactValue(nullptr));
  }
  void tell_megatron_optimizer() {
    const bool narrow = t_.text(at("optimizer.type")) == "adam_bf16";
    const bool aware = t_.flag(at("megatron.use_precision_aware_optimizer")) || narrow;
    t_.derived(fact("precision_aware_optimizer"), aware, "key or adam_bf16", at("megatron.use_precision_aware_optimizer"));
    if (!aware) {
      t_.code(fact("optimizer_state_dtype"), "float32", "exp_avg_dtype only acts with the precision-aware optimizer");
      return;
    }
    if (narrow)
      t_.derived(fact("optimizer_state_dtype"), "bfloat16", "adam_bf16", at("optimizer.type"));
    else
      t_.take(fact("optimizer_state_dtype"), at("megatron.exp_avg_dtype"));
    t_.take(fact("main_grads_dtype"), at("megatron.main_grads_dtype"));
  }
  FactValue value_or_null(const std::string& path) const {
    const auto* n = t_.at(path);
    return n == nullptr ? FactValue(nullptr) : value_of(*n);
  }

  void tell_archon() {
    const Layout& l = role_.part.layout;
    t_.code(fact("sharding"), "full_shard", "areal/experimental/engine/archon_engine.py: fully_shard over d*c, not over t");
    t_.derived(fact("shard_group"), l.data * l.context, "d*c", string_path());
    t_.take(fact("param_dtype"), at("dtype"));
    t_.take(fact("compute_dtype"), at("dtype"));
    t_.derived(fact("grad_dtype"), t_.text(at("dtype")), "storage dtype", at("dtype"));
    t_.code(fact("reduce_dtype"), "float32", "archon hard-codes fp32 reduce");
    t_.derived(fact("optimizer_state_dtype"), t_.text(at("dtype")), "AdamW inherits", at("dtype"));
    t_.code(fact("separate_master_weights"), false, "archon");
    t_.take(fact("param_offload"), at("archon.offload_params"));
    t_.take(fact("fp8"), at("archon.fp8_config.mode"));
    t_.take(fact("pp_schedule"), at("archon.pp_schedule"));
  }

  void tell_optimizer() {
    if (trains_) {
      t_.take(fact("optimizer"), at("optimizer.type"));
    } else {
      t_.derived(fact("optimizer"), nullptr, "optimizer: null", at("optimizer"));
      if (role_.part.backend == Backend::fsdp) t_.code(fact("optimizer_state_dtype"), nullptr, "no optimizer");
      return;
    }
    if (role_.part.backend != Backend::fsdp) return;
    // AnyPrecisionAdamW keeps momentum, variance and the Kahan compensation in bf16 (areal/engine/fsdp_utils/optimizer.py).
    const bool narrow = t_.text(at("optimizer.type")) == "adam_bf16";
    t_.derived(fact("optimizer_state_dtype"), narrow ? "bfloat16" : states_,
               narrow ? "AnyPrecisionAdamW keeps its states in bf16" : "AdamW inherits the storage dtype",
               narrow ? at("optimizer.type") : "");
  }

  void tell_recompute() {
    const bool on = t_.flag(at("gradient_checkpointing"));
    FactValue v = FactValue::map();
    if (megatron()) {
      // megatron-bridge copies the settings to the model whether or not gradient_checkpointing is set.
      const bool bridge = t_.text(at("megatron.bridge_type")) == "megatron-bridge";
      v["granularity"] = on || bridge ? t_.text(at("megatron.recompute_granularity"), on ? "full" : "none") : "none";
      if (v["granularity"] == FactValue("full")) {
        v["method"] = t_.text(at("megatron.recompute_method"), "uniform");
        v["layers"] = t_.whole(at("megatron.recompute_num_layers"), 1);
      } else if (v["granularity"] == FactValue("selective")) {
        v["modules"] = value_or_null(at("megatron.recompute_modules"));
      }
    } else if (role_.part.backend == Backend::archon) {
      const std::string mode = t_.text(at("archon.ac_mode"), "selective");
      v["granularity"] = on ? mode : "none";
      if (on && mode == "selective") v["selective_option"] = t_.text(at("archon.selective_ac_option"), "op");
    } else {
      v["granularity"] = on ? "full" : "none";
      v["unit"] = "every transformer layer";
    }
    t_.made(fact("recompute"), std::move(v), at("gradient_checkpointing"));
  }

  void tell_micro_batch() {
    t_.code(fact("micro_batch.mode"), "tokens", "AReaL packs by tokens");
    t_.take(fact("micro_batch.tokens_per_micro_batch"), at("mb_spec.max_tokens_per_mb"));
    t_.code(fact("micro_batch.basis"), "per data-parallel rank; a GPU sees this divided by c", "areal/engine/*");
    t_.take(fact("micro_batch.min_micro_batches"), at("mb_spec.n_mbs"));
    t_.take(fact("micro_batch.pad_to_maximum"), at("pad_to_maximum"));
    const std::int64_t tokens = t_.whole(at("mb_spec.max_tokens_per_mb"), 0), context = role_.part.layout.context;
    if (tokens <= 0) return;
    const bool aligns = role_.part.backend == Backend::fsdp;  // to 256 tokens: areal/utils/data.py
    t_.derived(fact("micro_batch.tokens_per_gpu_max"), (aligns ? round_up(tokens, 256) : tokens) / context,
               aligns ? "ceil to 256 then / c" : "/ c, before alignment padding", at("mb_spec.max_tokens_per_mb"));
  }

  void tell_rest() {
    if (role_.part.backend == Backend::fsdp)
      t_.take(fact("attention"), at("attn_impl"));
    else
      t_.code(fact("attention"), megatron() ? "transformer_engine" : "flash (varlen)", "attn_impl is an FSDP/HF key");
    t_.take(fact("logprob_chunk_tokens"), at("logprobs_chunk_size"), 1024, "constant in areal/utils/functional");
    t_.take(fact("fused_kernels"), at("use_kernels"), false, "not in this version");
    FactValue lora;
    if (lora_) {
      FactValue targets = value_or_null(at("target_modules"));
      if (targets.is_null() || targets.empty()) targets = FactValue::list({"all-linear"});
      lora = FactValue::map();
      lora["rank"] = t_.whole(at("lora_rank"), 32);
      lora["alpha"] = t_.whole(at("lora_alpha"), 16);
      lora["targets"] = targets;
    }
    t_.derived(fact("lora"), std::move(lora), lora_ ? at("use_lora") : at("use_lora") + " is false", at("use_lora"));
    t_.derived(fact("trainable"), trains_, "optimizer present", at("optimizer"));
  }

  void tell_place() {
    if (role_.beside.empty()) {
      t_.code(fact("placement"), "own", "separate process");
    } else if (role_.in_process) {
      t_.code(fact("placement"), "in_process:" + role_.beside, role_.why_in_process);
    } else {
      const std::string strategy = at("scheduling_strategy");
      t_.made(fact("placement"), "shares:" + role_.beside, strategy);
      t_.derived(fact("own_process"), t_.flag(strategy + ".fork", true), "scheduling_strategy.fork", strategy + ".fork");
    }
    t_.take(fact("offload_between_phases"), at("offload"), false);
  }

  Teller& t_;
  const BuiltRole& role_;
  std::string path_, key_;
  bool lora_, trains_ = false;
  std::string states_;
};

}  // namespace

void tell_trainer(Teller& t, const BuiltRole& role) { TrainerTeller(t, role).run(); }

}  // namespace oomplan::areal
