#include "frontends/transformers/spell.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "frontends/trainers/names.hpp"
#include "frontends/yaml_text.hpp"
#include "units/sizes.hpp"

namespace oomplan::transformers {
namespace {

/// Knobs whose value is one argument's, and whose words are its too.
struct KnobRow {
  std::string_view knob, path;
};
constexpr std::array<KnobRow, 9> kPlain{{
    {"trainer.sequences_per_micro_batch", "per_device_train_batch_size"},
    {"trainer.micro_batches", "gradient_accumulation_steps"},
    {"trainer.find_unused_parameters", "ddp_find_unused_parameters"},
    {"trainer.bucket_cap_mb", "ddp_bucket_cap_mb"},
    {"trainer.weight_decay", "weight_decay"},
    {"trainer.lora.rank", "lora_r"},
    {"trainer.lora.alpha", "lora_alpha"},
    {"trainer.lora.dropout", "lora_dropout"},
    {"trainer.lora.base_double_quant", "use_bnb_nested_quant"},
}};

FactValue value_of_text(const std::string& text) {
  if (text == "true" || text == "false") return text == "true";
  if (const auto count = read_count(text)) return *count.value;
  if (const auto number = read_number(text)) return *number.value;
  return text;
}

Spelt one(std::string path, FactValue value) { return {{{std::move(path), std::move(value)}}, {}}; }

/// Of files that arguments name only arguments can be changed: the file is another one.
Spelt beside(std::string_view path) {
  return {{},
          fmt::format("{} stands in a file of its own",
                      path.substr(path.rfind('.') == std::string_view::npos ? 0 : path.rfind('.') + 1))};
}
bool in_a_file(const HfText& text, std::string_view path) {
  if (path.find('.') == std::string_view::npos) return false;
  const std::string top(path.substr(0, path.find('.')));
  return top == "accelerate" || text.given.at(top) == nullptr || !text.given.at(top)->is_container();
}

Spelt of_fsdp(const HfText& text, const Said& said, FactValue value) {
  if (said.path == "fsdp" || in_a_file(text, said.path)) return beside(said.path);
  return one(said.path, std::move(value));
}

Spelt of_zero(const HfText& text, std::string_view knob) {
  const bool file = text.given.at("deepspeed") != nullptr;
  return beside(fmt::format("{}{}", file ? "" : "accelerate.", knob.substr(knob.rfind('.') + 1)));
}

/// Sequences, of which a pair has two.
Spelt of_pairs(const std::string& value) {
  const auto count = read_count(value);
  if (!count || *count.value % 2 != 0) return {{}, "a pair is two sequences"};
  return one("per_device_train_batch_size", *count.value / 2);
}

Spelt optimizer(const HfText& text, const std::string& name, const std::string& form) {
  const std::string_view word = trainers::word_of_optimizer(name, form);
  if (word.empty()) return {{}, fmt::format("Transformers has no name for the optimizer {}", name)};
  if (text.root.at("deepspeed.optimizer.type") != nullptr) return beside("deepspeed.optimizer");
  return one("optim", std::string(word));
}

}  // namespace

Spelt spell(const HfText& text, const HfMeaning& meaning, std::string_view knob, const std::string& value) {
  if (knob.starts_with("actor.")) return spell(text, meaning, fmt::format("trainer.{}", knob.substr(6)), value);
  const bool pairs = text.trainer->name == "dpo" || text.trainer->name == "reward";
  if (pairs && knob == "trainer.sequences_per_micro_batch") return of_pairs(value);
  if (text.trainer->name == "grpo" && knob == "trainer.sequence_tokens") return {{}, "a prompt and a completion have a key each"};
  for (const KnobRow& row : kPlain)
    if (row.knob == knob && text.root.find(row.path) != nullptr) return one(std::string(row.path), value_of_text(value));
  const Fsdp& f = meaning.engine.fsdp;
  if (knob == "trainer.recompute" && (value == "full" || value == "none")) {
    const std::string& by = meaning.recompute_by;
    if (in_a_file(text, by)) return beside(by);
    return one(by, value == "full");
  }
  if (knob == "trainer.sequence_tokens" && !meaning.cap.empty()) return one(meaning.cap, value_of_text(value));
  if (knob == "trainer.kernels")
    if (const std::string_view word = trainers::attention_of_kernels(value);
        !word.empty() && text.root.find("attn_implementation") != nullptr)
      return one("attn_implementation", std::string(word));
  if (knob == "trainer.optimizer") return optimizer(text, value, "");
  if (knob == "trainer.optimizer_form") return optimizer(text, "adamw", value);
  if (knob == "trainer.liger") return one("use_liger_kernel", value != "[]" && value != "none");
  if (knob == "trainer.head" && (value == "liger_fused_ce" || value == "hf_loss" || value.starts_with("trl_sft")))
    return one("use_liger_kernel", value == "liger_fused_ce");
  if (knob.starts_with("trainer.zero.")) return of_zero(text, knob);
  if (meaning.engine.name.value.starts_with("fsdp")) {
    if (knob == "trainer.cpu_offload_policy") return of_fsdp(text, f.offload, value == "true");
    if (knob == "trainer.forward_prefetch") return of_fsdp(text, f.forward, value == "true");
    if (knob == "trainer.use_orig_params") return of_fsdp(text, f.original, value == "true");
    if (knob == "trainer.backward_prefetch")
      return of_fsdp(text, f.backward, value == "pre" ? "BACKWARD_PRE" : value == "post" ? "BACKWARD_POST" : "NO_PREFETCH");
    if (knob == "trainer.reshard_after_forward")
      return f.version == 2 ? of_fsdp(text, f.reshard, value == "true")
                            : of_fsdp(text, f.strategy, value == "true" ? "FULL_SHARD" : "SHARD_GRAD_OP");
  }
  return {{}, fmt::format("no argument says {}", knob)};
}

std::string key_of_knob(const HfText& text, const HfMeaning& meaning, std::string_view knob) {
  for (const char* value : {"true", "full", "hf_sdpa", "adamw", "fused", "1"}) {
    const Spelt spelt = spell(text, meaning, knob, value);
    if (!spelt.edits.empty()) return spelt.edits.front().path;
  }
  return {};
}

std::string argument_of(const Edit& edit) { return fmt::format("--{}={}", edit.path, yaml::written(edit.value)); }

}  // namespace oomplan::transformers
