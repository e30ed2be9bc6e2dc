// What verl's training engines make of their settings (verl/workers/engine/fsdp, verl/workers/engine/megatron).
#include <algorithm>

#include <fmt/format.h>

#include "frontends/verl/meaning_parts.hpp"

namespace oomplan::verl {
namespace {

using compose::Node;

class EngineTeller {
 public:
  EngineTeller(Telling& t, const RoleAt& at, Release release)
      : t_(t), at_(at), release_(release), fact_("roles." + at.name + ".") {}

  void run() {
    t_.take(fact_ + "model", model_path());
    t_.derived(fact_ + "engine", engine(), at_.path.empty() ? "engine.strategy" : at_.path + ".strategy");
    t_.derived(fact_ + "gpus", at_.gpus, "world");
    if (at_.megatron)
      megatron();
    else
      fsdp();
    t_.take(fact_ + "fused_kernels", at_.model + ".use_fused_kernels", FactValue(false));
    adapters();
  }

 private:
  bool since(std::string_view release) const { return release_ >= release_named(release); }
  std::string block(std::string_view key) const { return fmt::format("{}.{}", at_.block, key); }
  std::string degree(std::string_view key) const { return fmt::format("{}.{}", at_.block_of_degrees(), key); }
  std::string own(std::string_view key) const {
    return at_.path.empty() ? std::string(key) : fmt::format("{}.{}", at_.path, key);
  }
  std::string model_path() const {
    const std::string old = at_.model + ".partial_pretrain";
    return t_.knows(old) ? old : at_.model + ".path";
  }
  std::string engine() const {
    if (at_.megatron) return t_.flag(block("use_megatron_fsdp")) ? "megatron_fsdp" : "megatron";
    return engine_named(t_.text(own("strategy"), t_.text(block("strategy"), t_.text("model.strategy", "fsdp"))));
  }

  void fsdp() {
    const std::int64_t context = context_of(t_, at_);
    const std::string ulysses = own("ulysses_sequence_parallel_size");
    t_.derived(fact_ + "layout.dp", at_.gpus / std::max<std::int64_t>(1, context), "world/ulysses", ulysses);
    t_.made(fact_ + "layout.cp", context,
            t_.whole(ulysses, 1) > 1 || !t_.knows(block("ulysses_sequence_parallel_size"))
                ? ulysses
                : block("ulysses_sequence_parallel_size"));
    t_.code(fact_ + "layout.cp_kind", "ulysses", "verl");
    for (const char* letter : {"tp", "pp", "ep"}) t_.code(fmt::format("{}layout.{}", fact_, letter), 1, "FSDP engine");
    const std::int64_t size = t_.whole(block("fsdp_size"), -1);
    const bool all = size < 0 || size >= at_.gpus;
    t_.derived(fact_ + "shard_group", all ? at_.gpus : size, "fsdp_size; -1 = all ranks", block("fsdp_size"));
    t_.take(fact_ + "fsdp_size", block("fsdp_size"), FactValue(-1));
    t_.derived(fact_ + "sharding", all ? "full_shard" : "hybrid_shard", "fsdp_size", block("fsdp_size"));
    t_.take(fact_ + "reshard_after_forward", block("reshard_after_forward"), FactValue(true));
    formats();
    t_.take(fact_ + "param_offload", block("param_offload"), FactValue(false));
    t_.take(fact_ + "optimizer_offload", block("optimizer_offload"), FactValue(false));
    t_.take(fact_ + "offload_policy", block("offload_policy"), FactValue(false));
    t_.take(fact_ + "forward_prefetch", block("forward_prefetch"), FactValue(false));
    t_.take(fact_ + "wrap_min_num_params", block("wrap_policy.min_num_params"), FactValue(0));
    optimizer_of_fsdp();
    if (at_.forward_only)
      t_.code(fact_ + "forced_param_offload", true,
              "verl/workers/engine/fsdp/transformer_impl.py: forward_only forces CPU offload");
    FactValue recompute = FactValue::map();
    recompute["granularity"] = t_.flag(at_.model + ".enable_gradient_checkpointing", true) ? "full" : "none";
    t_.made(fact_ + "recompute", recompute, at_.model + ".enable_gradient_checkpointing");
    t_.take(fact_ + "activation_offload", at_.model + ".enable_activation_offload", FactValue(false));
    t_.take(fact_ + "remove_padding",
            t_.knows(at_.model + ".use_remove_padding") ? at_.model + ".use_remove_padding" : "use_remove_padding",
            FactValue(false));
    t_.take(fact_ + "liger", at_.model + ".use_liger", FactValue(false));
    entropy("entropy_chunking", "entropy_from_logits_with_chunking");
    entropy("entropy_checkpointing", "entropy_checkpointing");
    const std::string attention = at_.model + ".override_config.attn_implementation";
    t_.derived(fact_ + "attention", t_.text(attention, "flash_attention_2"),
               "model.override_config.attn_implementation, else flash_attention_2", attention);
  }

  /// Between 0.7 and 0.8 the engine reads its own block alone; before, the role; from 0.9 on the block follows the role.
  void entropy(const char* fact, const char* key) {
    const std::string in_block = block(key);
    t_.take(fact_ + fact, since("0.7.0") || !t_.knows(own(key)) ? in_block : own(key), FactValue(false));
  }

  /// fp32 for what trains and bf16 for the reference where nothing is said, up to 0.6.0; then the files say fp32 for both.
  std::string storage() const { return t_.text(block("model_dtype"), at_.forward_only ? "bf16" : "fp32"); }
  void formats() {
    if (t_.has(block("model_dtype")))
      t_.take(fact_ + "param_dtype", block("model_dtype"));
    else
      t_.code(fact_ + "param_dtype", storage(),
              "fp32 for actor and critic, bf16 for the reference (verl/workers/fsdp_workers.py)");
    const std::string mixed = block("mixed_precision");
    const auto format = [&](const char* fact, const char* key, const char* otherwise, const char* where) {
      if (t_.has(fmt::format("{}.{}", mixed, key)))
        t_.take(fact_ + fact, fmt::format("{}.{}", mixed, key));
      else
        t_.code(fact_ + fact, otherwise, where);
    };
    format("compute_dtype", "param_dtype", "bf16", "mixed_precision.param_dtype, else bf16");
    format("reduce_dtype", "reduce_dtype", "fp32", "mixed_precision.reduce_dtype, else fp32");
    if (at_.forward_only)
      t_.code(fact_ + "grad_dtype", nullptr, "forward only");
    else
      t_.derived(fact_ + "grad_dtype", storage(), "sharded gradient has the parameter dtype", block("model_dtype"));
    t_.code(fact_ + "separate_master_weights", false, "the stored parameter is the master");
  }

  void optimizer_of_fsdp() {
    if (at_.forward_only) return t_.code(fact_ + "optimizer", nullptr, "forward only");
    const std::string optim = own("optim");
    t_.take(fact_ + "optimizer", optim + ".optimizer", FactValue("AdamW"), "verl/workers/fsdp_workers.py");
    t_.take(fact_ + "optimizer_impl", optim + ".optimizer_impl", FactValue("torch.optim"), "verl/workers/fsdp_workers.py");
    t_.take(fact_ + "optimizer_overrides", optim + ".override_optimizer_config", FactValue(nullptr));
    t_.derived(fact_ + "optimizer_state_dtype", storage(), "AdamW states follow the stored parameter", block("model_dtype"));
  }

  void adapters() {
    const std::string rank = at_.model + ".lora_rank", own_rank = at_.model + ".lora.rank";
    const bool bridge = t_.whole(own_rank, 0) > 0;
    const std::string key = bridge ? own_rank : rank;
    if (t_.whole(key, 0) <= 0)
      return t_.derived(fact_ + "lora", nullptr, at_.megatron ? own_rank : rank, t_.knows(rank) ? rank : own_rank);
    FactValue lora = FactValue::map();
    lora["rank"] = t_.whole(key, 0);
    const std::string at = bridge ? at_.model + ".lora." : at_.model + ".";
    const auto add = [&](const char* name, const std::string& from) {
      if (const Node* n = t_.at(from)) lora[name] = value_of(*n);
    };
    add("alpha", at + (bridge ? "alpha" : "lora_alpha"));
    add("targets", at + "target_modules");
    if (bridge) add("merge", at + "merge"), add("type", at + "type");
    t_.derived(fact_ + "lora", lora, key, key);
  }

  void megatron() {
    const std::int64_t tensor = t_.whole(degree("tensor_model_parallel_size"), 1),
                       stages = t_.whole(degree("pipeline_model_parallel_size"), 1);
    const std::int64_t context = context_of(t_, at_);
    t_.derived(fact_ + "layout.dp", at_.gpus / std::max<std::int64_t>(1, tensor * stages * context), "world/(TP*PP*CP)",
               degree("tensor_model_parallel_size"));
    t_.take(fact_ + "layout.tp", degree("tensor_model_parallel_size"));
    t_.take(fact_ + "layout.pp", degree("pipeline_model_parallel_size"));
    t_.take(fact_ + "layout.cp", degree("context_parallel_size"), FactValue(1));
    t_.code(fact_ + "layout.cp_kind", "ring_p2p", "Megatron");
    t_.take(fact_ + "layout.ep", degree("expert_model_parallel_size"), FactValue(1));
    t_.take(fact_ + "layout.etp", degree("expert_tensor_parallel_size"), FactValue(nullptr), "null = Megatron default, TP size");
    t_.take(fact_ + "layout.vpp", degree("virtual_pipeline_model_parallel_size"), FactValue(nullptr));
    t_.derived(fact_ + "layout.sequence_parallel", t_.flag(block("sequence_parallel"), true) && tensor > 1,
               "sequence_parallel and TP>1", block("sequence_parallel"));
    if (at_.forward_only)
      t_.code(fact_ + "sharding", "none", "forward only: no optimizer, no gradient buffer");
    else
      t_.derived(fact_ + "sharding", t_.flag(block("use_distributed_optimizer"), true) ? "zero1_distributed_optimizer" : "none",
                 "use_distributed_optimizer", block("use_distributed_optimizer"));
    t_.take(fact_ + "param_dtype", block("dtype"), FactValue("bfloat16"));
    const bool parameters = t_.flag(block("param_offload"), t_.flag(own("param_offload")));
    t_.take(fact_ + "param_offload", t_.knows(block("param_offload")) ? block("param_offload") : own("param_offload"),
            FactValue(false));
    t_.take(fact_ + "grad_offload", block("grad_offload"), FactValue(false));
    t_.take(fact_ + "optimizer_offload", block("optimizer_offload"), FactValue(false));
    t_.derived(fact_ + "grad_offload_effective", parameters, "grad_offload is parsed but gradients follow param_offload",
               block("param_offload"));
    recompute();
    overrides("transformer_overrides", block("override_transformer_config"), true);
    overrides("ddp_overrides", block("override_ddp_config"), false);
    if (at_.forward_only)
      t_.code(fact_ + "optimizer", nullptr, "forward only");
    else
      optimizer_of_megatron();
    t_.take(fact_ + "use_mbridge", block("use_mbridge"), FactValue(false));
    const bool other = t_.knows(block("vanilla_mbridge")) && !t_.flag(block("vanilla_mbridge"));
    t_.derived(fact_ + "models_by",
               !t_.flag(block("use_mbridge")) ? "verl"
               : other                        ? "megatron-bridge"
                                              : "mbridge",
               "verl itself without use_mbridge; with it and without vanilla_mbridge Megatron-Bridge", block("vanilla_mbridge"));
    entropy("entropy_chunking", "entropy_from_logits_with_chunking");
    if (since("0.5.0"))
      t_.code(fact_ + "gradient_checkpointing_flag_ignored", true, "model.enable_gradient_checkpointing acts on FSDP only");
  }

  void recompute() {
    std::string at = block("override_transformer_config.recompute_"), source = at + "granularity";
    const std::string old = at_.model + ".gradient_checkpointing_kwargs.activations_checkpoint_";  // up to 0.4.1
    if (t_.knows(old + "granularity") && t_.flag(at_.model + ".enable_gradient_checkpointing"))
      at = old, source = old + "granularity";
    FactValue value = FactValue::map();
    const std::string granularity = t_.text(source, "none");
    value["granularity"] = granularity;
    if (granularity == "full") {
      value["method"] = t_.has(at + "method") ? FactValue(t_.text(at + "method")) : FactValue(nullptr);
      value["layers"] = t_.has(at + "num_layers") ? FactValue(t_.whole(at + "num_layers", 1)) : FactValue(nullptr);
    }
    if (granularity == "selective")
      if (const Node* modules = t_.at(at + "modules")) value["modules"] = value_of(*modules);
    t_.made(fact_ + "recompute", value, source);
    if (!t_.knows(source)) t_.code(fact_ + "recompute", value, "nothing is recomputed");
  }

  /// Keys that a user adds for Megatron's own configuration, those of recomputation left out.
  void overrides(const char* fact, const std::string& path, bool without_recompute) {
    const Node* n = t_.at(path);
    FactValue all = n != nullptr && n->kind == Node::Kind::map ? value_of(*n) : FactValue::map();
    FactValue kept = FactValue::map();
    for (std::size_t i = 0; i < all.keys().size(); ++i)
      if (!without_recompute || !all.keys()[i].starts_with("recompute_")) kept[all.keys()[i]] = all.items()[i];
    t_.derived(fact_ + fact, kept, path, path);
  }

  void optimizer_of_megatron() {
    const std::string optim = own("optim"), more = optim + ".override_optimizer_config.";
    t_.take(fact_ + "optimizer", optim + ".optimizer", FactValue("adam"));
    t_.take(fact_ + "optimizer_overrides", optim + ".override_optimizer_config", FactValue(nullptr));
    t_.derived(fact_ + "precision_aware_optimizer",
               t_.flag(more + "use_precision_aware_optimizer", t_.flag(optim + ".use_precision_aware_optimizer")),
               "override_optimizer_config wins", more + "use_precision_aware_optimizer");
    FactValue host = FactValue::map();
    const bool on = t_.flag(more + "optimizer_cpu_offload");
    host["enabled"] = on;
    if (on) host["fraction"] = t_.real(more + "optimizer_offload_fraction", 1);
    t_.derived(fact_ + "optimizer_cpu_offload", host, "override_optimizer_config", more + "optimizer_offload_fraction");
  }

  Telling& t_;
  const RoleAt& at_;
  Release release_;
  std::string fact_;
};

}  // namespace

std::string engine_named(std::string_view strategy) { return strategy == "fsdp" ? "fsdp1" : std::string(strategy); }

std::int64_t context_of(const Telling& t, const RoleAt& at) {
  if (at.megatron) return std::max<std::int64_t>(1, t.whole(at.block_of_degrees() + ".context_parallel_size", 1));
  const std::int64_t role =
      t.whole(at.path.empty() ? "ulysses_sequence_parallel_size" : at.path + ".ulysses_sequence_parallel_size", 1);
  return std::max<std::int64_t>(1, role > 1 ? role : t.whole(at.block + ".ulysses_sequence_parallel_size", role));
}

void tell_engine(Telling& t, const RoleAt& at, Release release) { EngineTeller(t, at, release).run(); }

void tell_batch(Telling& t, const BatchAt& b) {
  const bool dynamic = t.flag(b.dynamic);
  t.take(b.fact + ".dynamic", b.dynamic, FactValue(false));
  if (dynamic) {
    const std::int64_t tokens = t.whole(b.tokens, 32768);  // of a v1 critic: a field of the dataclass alone
    if (t.knows(b.tokens))
      t.take(b.fact + ".tokens_per_gpu", b.tokens);
    else
      t.code(b.fact + ".tokens_per_gpu", tokens, "verl/workers/config/critic.py");
    t.derived(b.fact + ".tokens_per_micro_batch_of_group", tokens * b.context, fmt::format("tokens x {}", b.group), b.tokens);
    return;
  }
  if (t.has(b.sequences)) {
    t.take(b.fact + ".sequences_per_data_parallel_rank", b.sequences);
  } else if (t.has(b.global_sequences)) {
    t.derived(b.fact + ".sequences_per_data_parallel_rank", std::max<std::int64_t>(1, t.whole(b.global_sequences, 1) / b.data),
              "divided by the data-parallel size", b.global_sequences);
  }
  t.derived(b.fact + ".sequence_length_padded", b.longest, "max_prompt_length + max_response_length");
}

}  // namespace oomplan::verl
