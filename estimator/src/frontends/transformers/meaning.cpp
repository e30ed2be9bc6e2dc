#include "frontends/transformers/meaning.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "frontends/trainers/names.hpp"

namespace oomplan::transformers {
namespace {

using compose::Node;

struct PlainRow {
  std::string_view fact, path;
};
constexpr std::array<PlainRow, 12> kTrainer{{
    {"model", "model_name_or_path"},
    {"attention", "attn_implementation"},
    {"compile", "torch_compile"},
    {"sequences_per_gpu", "per_device_train_batch_size"},
    {"gradient_accumulation", "gradient_accumulation_steps"},
    {"packing", "packing"},
    {"optimizer", "optim"},
    {"liger", "use_liger_kernel"},
    {"empty_device_cache_steps", "torch_empty_cache_steps"},
    {"loss", "loss_type"},
    {"activation_offloading", "activation_offloading"},
    {"find_unused_parameters", "ddp_find_unused_parameters"},
}};

class Teller {
 public:
  explicit Teller(const HfText& text) : text_(text), t_(text.root, m_.facts, text.trl() ? "TRL's code" : "Transformers' code") {}

  HfMeaning run() {
    m_.engine = engine_of(text_);
    m_.gpus = text_.world.gpus();
    find_loaded();
    find_adapters();
    find_recompute();
    find_lengths();
    tell();
    return std::move(m_);
  }

 private:
  static std::string trainer(std::string_view name) { return fmt::format("roles.trainer.{}", name); }
  static FactValue known(std::int64_t n) { return n > 0 ? FactValue(n) : FactValue(nullptr); }

  /// Without a word Transformers 4 loads fp32, Transformers 5 what the checkpoint has, TRL from 0.28 on fp32.
  void find_loaded() {
    for (const char* key : {"model_init_kwargs.dtype", "model_init_kwargs.torch_dtype", "dtype", "torch_dtype"}) {
      const std::string said = text_at(text_.root, key);
      if (said.empty()) continue;
      m_.loaded_by = key;
      m_.loaded = said == "auto" ? "auto" : trainers::format_named(said);
      if (text_.says(key)) return;
    }
    if (!m_.loaded_by.empty()) return;
    m_.loaded_by = text_.root.find("dtype") != nullptr ? "dtype" : "torch_dtype";
    m_.loaded = transformers_from(text_.release, "5.0.0") && !text_.trl() ? "auto" : "fp32";
  }

  void find_adapters() {
    m_.adapters = t_.flag("use_peft");
    m_.packed = t_.flag("load_in_4bit") || t_.flag("load_in_8bit");
  }

  void find_recompute() {
    const std::string key = checkpointing_key(text_);
    const bool layers = m_.engine.fsdp.checkpoints.on();
    m_.recompute = layers || t_.flag(key);
    m_.recompute_by = layers ? m_.engine.fsdp.checkpoints.path : key;
    if (!m_.recompute || layers) return;
    const Node* kwargs = text_.root.find(key + "_kwargs");
    const bool filled = kwargs != nullptr && kwargs->kind == Node::Kind::map;
    const Node* said = filled ? kwargs->find("use_reentrant") : nullptr;
    if (said != nullptr && said->kind == Node::Kind::boolean)
      m_.reentrant = said->boolean;
    else if (trl_sets_it())
      m_.reentrant = false;
    else  // torch's own default is to enter again; of nothing Transformers 5 makes false
      m_.reentrant = filled ? !kwargs->entries.empty() || !transformers_from(text_.release, "5.17.0")
                            : !transformers_from(text_.release, "5.0.0");
    const bool third =
        m_.engine.name.value == "deepspeed" && m_.adapters && text_.trl() && trl_from(text_.release, "0.28.0") && stage() == "3";
    m_.reentrant = m_.reentrant || third;  // trl/trainer/sft_trainer.py
  }
  /// trl/trainer/sft_trainer.py from 0.27 on, beside Transformers 4.
  bool trl_sets_it() const {
    return text_.trl() && trl_from(text_.release, "0.27.0") && !transformers_from(text_.release, "5.0.0");
  }
  std::string stage() const {
    const std::string of_file = text_at(text_.root, "deepspeed.zero_optimization.stage");
    return of_file.empty() ? text_at(text_.root, "accelerate.deepspeed_config.zero_stage") : of_file;
  }

  void find_lengths() {
    for (const char* key : {"max_seq_length", "max_length", "block_size"}) {
      const Node* n = t_.at(key);
      if (n == nullptr) continue;
      if (m_.cap.empty()) m_.cap = key;
      if (n->kind != Node::Kind::integer) continue;
      m_.cap = key;
      m_.longest = n->integer;
      break;
    }
    if (text_.trainer->name == "grpo") find_prompts();
    // examples/pytorch/language-modeling/run_clm.py and TRL 0.12: the tokenizer's, 1024 at most
    const bool block = text_.trainer->name == "run_clm",
               first = text_.trainer->name == "sft" && !trl_from(text_.release, "0.15.0");
    if (m_.longest == 0 && (block || first)) m_.longest = 1024;
    if (text_.trainer->name == "hf") m_.cap = m_.longest > 0 ? m_.cap : "";
    const std::string strategy = t_.text("packing_strategy");
    m_.padding_free = t_.flag("padding_free") || (t_.flag("packing") && (strategy == "ffd" || strategy.starts_with("bfd")));
  }

  /// GRPO: a prompt, which arguments up to 0.26 cap, and a completion.
  void find_prompts() {
    const Node* prompt = t_.at("max_prompt_length");
    if (prompt != nullptr) m_.cap = "max_prompt_length";
    if (prompt != nullptr && prompt->kind == Node::Kind::integer)
      m_.longest = prompt->integer + t_.whole("max_completion_length", 256);
  }

  // ---- facts

  void tell() {
    t_.code("cluster.nodes", known(text_.world.nodes), "the launcher");
    t_.code("cluster.gpus_per_node", known(text_.world.per_node), "the launcher, or --gpus");
    t_.code("cluster.gpu", text_.gpu.empty() ? FactValue(nullptr) : FactValue(text_.gpu), "--gpu");
    t_.code("job.trainer", std::string(text_.trainer->name), "the command, the script's name, or the arguments");
    t_.code("job.kind", std::string(text_.trainer->kind), "");
    for (const PlainRow& row : kTrainer)
      if (t_.knows(row.path)) t_.take(trainer(row.fact), row.path);
    t_.derived(trainer("gpus"), known(m_.gpus), "processes of the launcher");
    t_.made(trainer("param_dtype"), m_.loaded.empty() ? FactValue(nullptr) : FactValue(m_.loaded), m_.loaded_by);
    t_.made(trainer("mixed_precision"), m_.engine.mixed.value, m_.engine.mixed.path);
    t_.derived(trainer("max_total_length"), known(m_.longest), m_.cap, m_.cap);
    FactValue recompute = FactValue::map();
    recompute["granularity"] = m_.recompute ? "full" : "none";
    if (m_.recompute) recompute["reentrant"] = m_.reentrant;
    t_.made(trainer("recompute"), recompute, m_.recompute_by);
    engine();
    lora();
    t_.code(trainer("placement"), "own", "");
  }

  void engine() {
    const Engine& e = m_.engine;
    t_.made(trainer("engine"), e.name.value, e.name.path);
    if (e.name.value == "deepspeed") {
      t_.derived(trainer("sharding"), "ZERO_" + (stage().empty() ? std::string("2") : stage()), "zero_stage");
      return;
    }
    if (!e.name.value.starts_with("fsdp")) return t_.code(trainer("sharding"), "none", "");
    const bool second = e.fsdp.version == 2;
    t_.made(trainer("sharding"),
            second ? std::string(e.fsdp.reshard.on() ? "FULL_SHARD" : "SHARD_GRAD_OP") : e.fsdp.strategy.value,
            second ? e.fsdp.reshard.path : e.fsdp.strategy.path);
    const bool hybrid = !second && e.fsdp.strategy.value.starts_with("HYBRID");
    t_.derived(trainer("shard_group"), known(hybrid ? text_.world.per_node : m_.gpus), "HYBRID_* shards inside a node");
    t_.made(trainer("fsdp_cpu_offload"), e.fsdp.offload.on(), e.fsdp.offload.path);
    t_.made(trainer("fsdp_auto_wrap_policy"), e.fsdp.wrap.value, e.fsdp.wrap.path);
    if (second) return;
    t_.made(trainer("fsdp_backward_prefetch"), e.fsdp.backward.value, e.fsdp.backward.path);
    t_.made(trainer("fsdp_forward_prefetch"), e.fsdp.forward.on(), e.fsdp.forward.path);
    t_.made(trainer("fsdp_use_orig_params"), e.fsdp.original.on(), e.fsdp.original.path);
  }

  void lora() {
    if (!m_.adapters) return t_.made(trainer("lora"), nullptr, "use_peft");
    FactValue out = FactValue::map();
    out["rank"] = t_.whole("lora_r", 16);
    out["alpha"] = t_.whole("lora_alpha", 32);
    const Node* targets = t_.at("lora_target_modules");
    out["targets"] = targets == nullptr ? FactValue(nullptr) : oomplan::value_of(*targets);
    out["quantised"] = m_.packed;
    if (m_.packed) out["bits"] = t_.flag("load_in_4bit") ? 4 : 8;
    t_.made(trainer("lora"), out, "use_peft");
  }

  const HfText& text_;
  HfMeaning m_;
  Telling t_;
};

}  // namespace

HfMeaning meaning_of(const HfText& text) { return Teller(text).run(); }

}  // namespace oomplan::transformers
