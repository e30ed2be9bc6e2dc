#include "frontends/oumi/spell.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "frontends/yaml_text.hpp"
#include "units/sizes.hpp"

namespace oomplan::oumi {
namespace {

/// Knobs whose value is one key's, and whose words are Oumi's too.
struct KeyRow {
  std::string_view knob, path;
};
constexpr std::array<KeyRow, 22> kPlain{{
    {"generator.kv_cache", "generation.use_cache"},
    {"generator.sequences_per_micro_batch", "generation.batch_size"},
    {"trainer.sequences_per_micro_batch", "training.per_device_train_batch_size"},
    {"trainer.micro_batches", "training.gradient_accumulation_steps"},
    {"trainer.sequence_tokens", "model.model_max_length"},
    {"trainer.cpu_offload_policy", "fsdp.cpu_offload"},
    {"trainer.forward_prefetch", "fsdp.forward_prefetch"},
    {"trainer.find_unused_parameters", "training.ddp_find_unused_parameters"},
    {"trainer.weight_decay", "training.weight_decay"},
    {"trainer.lora.rank", "peft.lora_r"},
    {"trainer.lora.alpha", "peft.lora_alpha"},
    {"trainer.lora.dropout", "peft.lora_dropout"},
    {"trainer.lora.base_double_quant", "peft.use_bnb_nested_quant"},
    {"trainer.zero.reduce_bucket", "deepspeed.reduce_bucket_size"},
    {"trainer.zero.allgather_bucket", "deepspeed.allgather_bucket_size"},
    {"trainer.zero.overlap_comm", "deepspeed.overlap_comm"},
    {"trainer.zero.contiguous_gradients", "deepspeed.contiguous_gradients"},
    {"trainer.zero.prefetch_bucket", "deepspeed.stage3_prefetch_bucket_size"},
    {"trainer.zero.persistence_threshold", "deepspeed.stage3_param_persistence_threshold"},
    {"trainer.zero.max_live", "deepspeed.stage3_max_live_parameters"},
    {"trainer.zero.max_reuse_distance", "deepspeed.stage3_max_reuse_distance"},
    {"trainer.zero.sub_group", "deepspeed.sub_group_size"},
}};
/// Knobs with words of their own.
struct WordRow {
  std::string_view knob, value, path, word;
};
constexpr std::array<WordRow, 18> kWords{{
    {"generator.kernels", "hf_sdpa", "model.attn_implementation", "sdpa"},
    {"generator.kernels", "hf_flash", "model.attn_implementation", "flash_attention_2"},
    {"generator.kernels", "hf_eager", "model.attn_implementation", "eager"},
    {"trainer.recompute", "full", "training.enable_gradient_checkpointing", "true"},
    {"trainer.recompute", "none", "training.enable_gradient_checkpointing", "false"},
    {"trainer.backward_prefetch", "pre", "fsdp.backward_prefetch", "BACKWARD_PRE"},
    {"trainer.backward_prefetch", "post", "fsdp.backward_prefetch", "BACKWARD_POST"},
    {"trainer.backward_prefetch", "none", "fsdp.backward_prefetch", "NO_PREFETCH"},
    {"trainer.kernels", "hf_sdpa", "model.attn_implementation", "sdpa"},
    {"trainer.kernels", "hf_flash", "model.attn_implementation", "flash_attention_2"},
    {"trainer.kernels", "hf_eager", "model.attn_implementation", "eager"},
    {"trainer.optimizer", "adamw_8bit", "training.optimizer", "adamw_8bit"},
    {"trainer.optimizer", "paged_adamw_8bit", "training.optimizer", "paged_adamw_8bit"},
    {"trainer.optimizer", "adafactor", "training.optimizer", "adafactor"},
    {"trainer.optimizer", "sgd", "training.optimizer", "sgd"},
    {"trainer.optimizer", "adamw", "training.optimizer", "adamw_torch_fused"},
    {"trainer.optimizer_form", "fused", "training.optimizer", "adamw_torch_fused"},
    {"trainer.optimizer_form", "foreach", "training.optimizer", "adamw_torch"},
}};

FactValue value_of_text(const std::string& text) {
  if (text == "true" || text == "false") return text == "true";
  if (const auto count = read_count(text)) return *count.value;
  if (const auto number = read_number(text)) return *number.value;
  return text;
}

Spelt sharding(const OumiText& text, const std::string& value) {
  const auto* now = text.root.at("fsdp.sharding_strategy");
  const bool hybrid = now != nullptr && now->text.starts_with("HYBRID");
  if (value == "true") return {{{"fsdp.sharding_strategy", hybrid ? "HYBRID_SHARD" : "FULL_SHARD"}}, {}};
  return {{{"fsdp.sharding_strategy", hybrid ? "HYBRID_SHARD_ZERO2" : "SHARD_GRAD_OP"}}, {}};
}

Spelt replicas(const OumiMeaning& m, const OumiText& text, const std::string& value) {
  if (value == "1") return {{{"fsdp.sharding_strategy", "FULL_SHARD"}}, {}};
  if (value == fmt::format("{}", text.world.nodes) && text.world.nodes > 1)
    return {{{"fsdp.sharding_strategy", "HYBRID_SHARD"}}, {}};
  if (value == fmt::format("{}", m.gpus)) return {{{"fsdp.sharding_strategy", "NO_SHARD"}}, {}};
  return {{}, "Oumi shards over all GPUs or over those of a node"};
}

Spelt offload(std::string_view section, const std::string& value) {
  const std::string path = fmt::format("deepspeed.{}", section);
  if (value == "true") return {{{path + ".device", "CPU"}}, {}};
  return {{{path, nullptr}}, {}};
}

Spelt engine(const std::string& value) {
  if (value == "fsdp1") return {{{"fsdp.enable_fsdp", true}, {"fsdp.auto_wrap_policy", "TRANSFORMER_BASED_WRAP"}}, {}};
  if (value == "ddp" || value == "single") return {{{"fsdp.enable_fsdp", false}}, {}};
  return {{}, fmt::format("Oumi has no engine {} that is described", value)};
}

/// Sequences of DPO, of which a pair has two.
Spelt pairs(const std::string& value) {
  const auto count = read_count(value);
  if (!count || *count.value % 2 != 0) return {{}, "a pair of DPO is two sequences"};
  return {{{"training.per_device_train_batch_size", *count.value / 2}}, {}};
}

/// Of trainers that pass model_max_length over, or to which it is not all.
Spelt length(std::string_view trainer, const std::string& value) {
  if (trainer == "TRL_KTO") return {{{"training.trainer_kwargs.max_length", value_of_text(value)}}, {}};
  return {{}, fmt::format("no key alone caps a sequence of the trainer {}", trainer)};
}

/// create_model_from_path of TRL; "none" is the policy's own.
Spelt reference_format(const OumiText& text, const std::string& value) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kFormats{
      {{"bf16", "bfloat16"}, {"fp16", "float16"}, {"fp32", "float32"}}};
  const auto* policy = text.root.at("model.torch_dtype_str");
  std::string word = policy == nullptr ? "auto" : policy->text;
  for (const auto& [ours, theirs] : kFormats)
    if (ours == value) word = theirs;
  return {{{"training.trainer_kwargs.model_init_kwargs.dtype", std::move(word)}}, {}};
}

}  // namespace

Spelt spell(const OumiText& text, const OumiMeaning& meaning, std::string_view knob, const std::string& value) {
  if (knob.starts_with("actor.")) return spell(text, meaning, fmt::format("trainer.{}", knob.substr(6)), value);
  if (knob == "trainer.sequences_per_micro_batch" && meaning.trainer == "TRL_DPO") return pairs(value);
  if (knob == "trainer.sequence_tokens" && meaning.trainer != "TRL_DPO" && meaning.trainer != "TRL_SFT")
    return length(meaning.trainer, value);
  if (knob == "trainer.reference_format") return reference_format(text, value);
  for (const KeyRow& row : kPlain)
    if (row.knob == knob) return {{{std::string(row.path), value_of_text(value)}}, {}};
  for (const WordRow& row : kWords)
    if (row.knob == knob && row.value == value) return {{{std::string(row.path), value_of_text(std::string(row.word))}}, {}};
  if (knob == "trainer.reshard_after_forward" && meaning.engine == "fsdp1") return sharding(text, value);
  if (knob == "trainer.replicas" && meaning.engine == "fsdp1") return replicas(meaning, text, value);
  if (knob == "trainer.zero.stage") return {{{"deepspeed.zero_stage", "ZERO_" + value}}, {}};
  if (knob == "trainer.zero.offload_optimizer") return offload("offload_optimizer", value);
  if (knob == "trainer.zero.offload_parameters") return offload("offload_param", value);
  if (knob == "trainer.engine") return engine(value);
  if (knob == "trainer.liger") return {{{"model.enable_liger_kernel", value != "[]" && value != "none"}}, {}};
  if (knob == "trainer.head" && (value == "liger_fused_ce" || value == "hf_loss" || value.starts_with("trl_sft")))
    return {{{"model.enable_liger_kernel", value == "liger_fused_ce"}}, {}};
  return {{}, fmt::format("Oumi has no key for {}", knob)};
}

std::string key_of_knob(const OumiText& text, const OumiMeaning& meaning, std::string_view knob) {
  if (knob.starts_with("actor.")) return key_of_knob(text, meaning, fmt::format("trainer.{}", knob.substr(6)));
  for (const WordRow& row : kWords)
    if (row.knob == knob) return std::string(row.path);
  const Spelt spelt = spell(text, meaning, knob, "true");
  return spelt.edits.empty() ? "" : spelt.edits.front().path;
}

std::string argument_of(const Edit& edit) { return fmt::format("--{}={}", edit.path, yaml::written(edit.value)); }

}  // namespace oomplan::oumi
