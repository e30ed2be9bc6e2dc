#include "frontends/oumi/meaning.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "frontends/oumi/job_file.hpp"

namespace oomplan::oumi {
namespace {

using compose::Node;

constexpr std::string_view kDistributed = "src/oumi/core/distributed.py";

/// A fact of the trainer that is the value of a key.
struct PlainRow {
  std::string_view fact, path;
};
constexpr std::array<PlainRow, 11> kTrainer{{
    {"model", "model.model_name"},
    {"mixed_precision", "training.mixed_precision_dtype"},
    {"attention", "model.attn_implementation"},
    {"compile", "training.compile"},
    {"freeze_layers", "model.freeze_layers"},
    {"device_map", "model.device_map"},
    {"sequences_per_gpu", "training.per_device_train_batch_size"},
    {"gradient_accumulation", "training.gradient_accumulation_steps"},
    {"packing", "data.train.pack"},
    {"optimizer", "training.optimizer"},
    {"empty_device_cache_steps", "training.empty_device_cache_steps"},
}};
constexpr std::array<PlainRow, 8> kFsdp{{
    {"fsdp_cpu_offload", "fsdp.cpu_offload"},
    {"fsdp_mixed_precision", "fsdp.mixed_precision"},
    {"fsdp_backward_prefetch", "fsdp.backward_prefetch"},
    {"fsdp_forward_prefetch", "fsdp.forward_prefetch"},
    {"fsdp_auto_wrap_policy", "fsdp.auto_wrap_policy"},
    {"fsdp_transformer_layer_cls", "fsdp.transformer_layer_cls"},
    {"fsdp_use_orig_params", "fsdp.use_orig_params"},
    {"fsdp_min_num_params", "fsdp.min_num_params"},
}};
constexpr std::array<PlainRow, 10> kDeepSpeed{{
    {"deepspeed_precision", "deepspeed.precision"},
    {"deepspeed_offload_optimizer", "deepspeed.offload_optimizer"},
    {"deepspeed_offload_param", "deepspeed.offload_param"},
    {"deepspeed_reduce_bucket_size", "deepspeed.reduce_bucket_size"},
    {"deepspeed_allgather_bucket_size", "deepspeed.allgather_bucket_size"},
    {"deepspeed_overlap_comm", "deepspeed.overlap_comm"},
    {"deepspeed_stage3_prefetch_bucket_size", "deepspeed.stage3_prefetch_bucket_size"},
    {"deepspeed_stage3_param_persistence_threshold", "deepspeed.stage3_param_persistence_threshold"},
    {"deepspeed_stage3_max_live_parameters", "deepspeed.stage3_max_live_parameters"},
    {"deepspeed_sub_group_size", "deepspeed.sub_group_size"},
}};
constexpr std::array<PlainRow, 6> kGrpo{{
    {"grpo_max_prompt_length", "training.grpo.max_prompt_length"},
    {"grpo_max_completion_length", "training.grpo.max_completion_length"},
    {"grpo_num_generations", "training.grpo.num_generations"},
    {"grpo_use_vllm", "training.grpo.use_vllm"},
    {"grpo_vllm_mode", "training.grpo.vllm_mode"},
    {"grpo_vllm_gpu_memory_utilization", "training.grpo.vllm_gpu_memory_utilization"},
}};

constexpr std::array<PlainRow, 6> kServer{{
    {"model", "model.model_name"},
    {"max_model_len", "model.model_max_length"},
    {"dtype", "model.torch_dtype_str"},
    {"max_new_tokens", "generation.max_new_tokens"},
    {"batch_size", "generation.batch_size"},
    {"attention", "model.attn_implementation"},
}};

struct TrainerRow {
  std::string_view trainer, kind;
  bool max_length;  ///< model_max_length is its max_length
};
constexpr std::array<TrainerRow, 9> kTrainers{{{"TRL_SFT", "sft", true},
                                               {"TRL_DPO", "dpo", true},
                                               {"TRL_KTO", "kto", false},
                                               {"TRL_GRPO", "rl", false},
                                               {"TRL_GKD", "distillation", true},
                                               {"TRL_GOLD", "distillation", true},
                                               {"HF", "sft", false},
                                               {"OUMI", "sft", false},
                                               {"VERL_GRPO", "rl", false}}};

class Teller {
 public:
  explicit Teller(const OumiText& text) : text_(text), t_(text.root, m_.facts, "Oumi's code") {}

  OumiMeaning run() {
    m_.gpus = text_.world.gpus();
    cluster();
    if (text_.kind == FileKind::training)
      training();
    else
      inference();
    return std::move(m_);
  }

 private:
  static std::string fact(std::string_view role, std::string_view name) { return fmt::format("roles.{}.{}", role, name); }
  std::string trainer(std::string_view name) const { return fact("trainer", name); }
  static FactValue known(std::int64_t n) { return n > 0 ? FactValue(n) : FactValue(nullptr); }

  void cluster() {
    t_.code("cluster.nodes", known(text_.world.nodes), "num_nodes of a job, or the launcher");
    t_.code("cluster.gpus_per_node", known(text_.world.per_node), "accelerators of a job, or the launcher");
    t_.code("cluster.gpu", text_.gpu.empty() ? FactValue(nullptr) : FactValue(name_in_jobs(text_.gpu)),
            "accelerators of a job, or --gpu");
  }

  template <std::size_t N>
  void plain(std::string_view role, const std::array<PlainRow, N>& rows) {
    for (const PlainRow& row : rows) t_.take(fact(role, row.fact), row.path);
  }

  void training() {
    m_.trainer = t_.text("training.trainer_type", "HF");
    const auto row =
        std::find_if(kTrainers.begin(), kTrainers.end(), [&](const TrainerRow& r) { return r.trainer == m_.trainer; });
    t_.take("job.trainer", "training.trainer_type");
    t_.derived("job.kind", std::string(row == kTrainers.end() ? "sft" : row->kind), "training.trainer_type",
               "training.trainer_type");
    plain("trainer", kTrainer);
    t_.derived(trainer("gpus"), known(m_.gpus), "num_nodes x accelerators of the job file");
    lengths();
    t_.take(trainer("param_dtype"), "model.torch_dtype_str");
    lower(trainer("mixed_precision"));
    t_.take(trainer("liger"), "model.enable_liger_kernel");
    recompute();
    engine();
    lora();
    losses();
    t_.code(trainer("placement"), "own", "");
  }
  /// Enums are told by their values.
  void lower(const std::string& key) {
    for (ToldFact& f : m_.facts)
      if (f.key == key) {
        std::string text = f.value.text();
        std::transform(text.begin(), text.end(), text.begin(),
                       [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
        f.value = text;
      }
  }

  void lengths() {
    t_.take(trainer("max_total_length"), "model.model_max_length");
    if (t_.has("model.model_max_length") && !takes_max_length(m_.trainer))
      t_.code(trainer("max_total_length_effective"), nullptr,
              fmt::format("model_max_length is ignored (warning) for trainer {}", m_.trainer));
  }

  void recompute() {
    FactValue value = FactValue::map();
    value["granularity"] = t_.flag("training.enable_gradient_checkpointing") ? "full" : "none";
    t_.made(trainer("recompute"), value, "training.enable_gradient_checkpointing");
  }

  void engine() {
    const bool fsdp = t_.flag("fsdp.enable_fsdp"), deepspeed = t_.flag("deepspeed.enable_deepspeed");
    if (deepspeed) {
      m_.engine = "deepspeed";
      t_.code(trainer("engine"), m_.engine, "deepspeed.enable_deepspeed");
      t_.take(trainer("sharding"), "deepspeed.zero_stage");
      plain("trainer", kDeepSpeed);
      as_given(trainer("deepspeed_offload_optimizer"), "deepspeed.offload_optimizer");
      as_given(trainer("deepspeed_offload_param"), "deepspeed.offload_param");
      return;
    }
    if (!fsdp) {
      m_.engine = m_.gpus > 1 ? "ddp" : "single";
      t_.code(trainer("engine"), m_.engine, "neither FSDP nor DeepSpeed");
      t_.code(trainer("sharding"), "none", "");
      return;
    }
    m_.engine = "fsdp1";
    t_.code(trainer("engine"), m_.engine, "torch FSDP through accelerate environment variables (HF/TRL) or directly (OUMI)");
    t_.take(trainer("sharding"), "fsdp.sharding_strategy");
    const bool hybrid = t_.text("fsdp.sharding_strategy").starts_with("HYBRID");
    const std::int64_t group = hybrid ? text_.world.per_node : m_.gpus;
    t_.derived(trainer("shard_group"), known(group), "HYBRID_* shards inside a node", "fsdp.sharding_strategy");
    plain("trainer", kFsdp);
    if (m_.trainer != "OUMI" && t_.flag("training.enable_gradient_checkpointing"))
      t_.code(trainer("recompute_by"), "accelerate FSDP activation checkpointing",
              fmt::format("enable_gradient_checkpointing is moved to FSDP_ACTIVATION_CHECKPOINTING, {}", kDistributed));
  }
  /// A section as it was written, without the defaults of its class.
  void as_given(const std::string& key, std::string_view path) {
    const Node* given = text_.given.at(path);
    if (given == nullptr || given->kind != Node::Kind::map) return;
    for (ToldFact& f : m_.facts)
      if (f.key == key) f.value = oomplan::value_of(*given);
  }

  void lora() {
    if (!t_.flag("training.use_peft")) {
      t_.made(trainer("lora"), nullptr, "training.use_peft");
      return;
    }
    FactValue out = FactValue::map();
    out["rank"] = t_.whole("peft.lora_r", 8);
    out["alpha"] = t_.whole("peft.lora_alpha", 8);
    const Node* targets = t_.at("peft.lora_target_modules");
    out["targets"] = targets == nullptr ? FactValue(nullptr) : oomplan::value_of(*targets);
    const bool packed = t_.flag("peft.q_lora");
    out["quantised"] = packed;
    if (packed) {
      out["bits"] = t_.whole("peft.q_lora_bits", 4);
      out["quant_type"] = t_.text("peft.bnb_4bit_quant_type");
      out["storage"] = t_.text("peft.bnb_4bit_quant_storage");
      out["compute"] = t_.text("peft.bnb_4bit_compute_dtype");
      out["nested"] = t_.flag("peft.use_bnb_nested_quant");
    }
    t_.made(trainer("lora"), out, "training.use_peft");
  }

  void losses() {
    if (m_.trainer == "TRL_GRPO") {
      plain("trainer", kGrpo);
      if (const Node* mode = t_.at("training.trainer_kwargs.vllm_mode"); mode != nullptr && t_.flag("training.grpo.use_vllm"))
        for (ToldFact& f : m_.facts)
          if (f.key == trainer("grpo_vllm_mode")) f.value = oomplan::value_of(*mode), f.origin = mode->origin;
      if (const Node* given = text_.given.at("training.trainer_kwargs"))
        t_.made(trainer("trainer_kwargs"), oomplan::value_of(*given), "training.trainer_kwargs");
    }
    for (const auto& [kind, section] : {std::pair{"TRL_GOLD", "gold"}, std::pair{"TRL_GKD", "gkd"}})
      if (const Node* given = text_.given.at(fmt::format("training.{}", section)); m_.trainer == kind && given != nullptr)
        t_.made(trainer(section), oomplan::value_of(*given), fmt::format("training.{}", section));
  }

  /// What generates; a judge of rules has no model.
  void inference() {
    const std::string role = "server", at(inference_path(text_.kind));
    t_.code("job.kind", "inference", class_of(text_.kind));
    if (!t_.has(at + "model.model_name")) return;
    const std::string engine = at + (text_.kind == FileKind::evaluation ? "inference_engine" : "engine");
    m_.engine = t_.text(engine, "NATIVE");
    t_.made(fact(role, "engine"), m_.engine, engine);
    for (const auto& [name, path] : kServer) t_.take(fact(role, name), at + std::string(path));
    t_.code(fact(role, "gpus"), known(m_.gpus), "the visible devices decide");
    t_.code(fact(role, "placement"), "own", "");
    if (m_.engine != "VLLM") return;
    constexpr std::string_view kEngine = "src/oumi/inference/vllm_inference_engine.py";
    t_.code(fact(role, "memory_fraction"), 0.9, kEngine);
    t_.code(fact(role, "memory_fraction_meaning"), "vLLM: share of total device memory", kEngine);
    t_.code(fact(role, "tp"), "all visible GPUs", kEngine);
    t_.code(fact(role, "enforce_eager"), true, kEngine);
    t_.code(fact(role, "prefix_caching"), true, kEngine);
  }

  const OumiText& text_;
  OumiMeaning m_;
  Telling t_;
};

}  // namespace

bool takes_max_length(std::string_view trainer) {
  return std::any_of(kTrainers.begin(), kTrainers.end(),
                     [&](const TrainerRow& row) { return row.trainer == trainer && row.max_length; });
}

OumiMeaning meaning_of(const OumiText& text) { return Teller(text).run(); }

}  // namespace oomplan::oumi
