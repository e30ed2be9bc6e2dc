#include "frontends/transformers/spell.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "frontends/trainers/names.hpp"
#include "frontends/transformers/zero.hpp"
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

nlohmann::ordered_json json_of(const FactValue& v) {
  using Of = FactValue::Kind;
  if (v.kind() == Of::null) return nullptr;
  if (v.kind() == Of::boolean) return v.boolean();
  if (v.kind() == Of::integer) return v.integer();
  if (v.kind() == Of::real) return v.real();
  if (v.kind() == Of::text) return v.text();
  nlohmann::ordered_json out = v.is_map() ? nlohmann::ordered_json::object() : nlohmann::ordered_json::array();
  for (std::size_t i = 0; i < v.items().size(); ++i) {
    if (v.is_map())
      out[v.keys()[i]] = json_of(v.items()[i]);
    else
      out.push_back(json_of(v.items()[i]));
  }
  return out;
}

Spelt one(std::string path, FactValue value) { return {{{std::move(path), std::move(value)}}, {}}; }

/// Of files that arguments name only arguments can be changed: the file is another one.
Spelt beside(std::string_view path) {
  return {{}, fmt::format("{} stands in a file of its own", path.substr(path.find('.') + 1))};
}
bool in_a_file(const HfText& text, std::string_view path) {
  const std::string top(path.substr(0, path.find('.')));
  if (top == path) return false;
  if (top == "accelerate") return true;
  const auto* given = text.given.at(top);
  return given != nullptr && given->kind == compose::Node::Kind::text;
}

Spelt of_fsdp(const HfText& text, const Said& said, FactValue value) {
  if (said.path == "fsdp" || in_a_file(text, said.path)) return beside(said.path);
  return one(said.path, std::move(value));
}

Spelt of_zero(const HfText& text, std::string_view knob, const std::string& value) {
  const auto* given = text.given.at("deepspeed");
  const std::string key = key_of_zero(knob);
  if (key.empty()) return {{}, fmt::format("no argument says {}", knob)};
  if (given == nullptr || given->kind != compose::Node::Kind::map) return beside("deepspeed." + key);
  const bool offload = key.ends_with(".device");
  return one("deepspeed.zero_optimization." + key, offload ? FactValue(value == "true" ? "cpu" : "none") : value_of_text(value));
}

/// From Transformers 5.12 on fsdp is a truth value, and what it means is FSDP2.
Spelt engine(const HfText& text, const HfMeaning& meaning, const std::string& value) {
  if (!transformers_from(text.release, "5.12.0") || text.root.find("fsdp") == nullptr) return {{}, "no argument says the engine"};
  const std::string& by = meaning.engine.name.path;
  if (by.starts_with("accelerate") || by == "deepspeed") return beside(by);
  if (value == "fsdp2") return one("fsdp", true);
  if (value == "ddp" || value == "single") return one("fsdp", false);
  return {{}, fmt::format("no argument says the engine {}", value)};
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
  if (knob.starts_with("trainer.zero.")) return of_zero(text, knob, value);
  if (knob == "trainer.engine") return engine(text, meaning, value);
  if (knob == "trainer.offload_checkpoints" && transformers_from(text.release, "5.17.0"))
    return one(checkpointing_key(text) + "_kwargs.offload", value == "true");
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

/// Inside of a dict all of it is said, as JSON.
std::string argument_of(const HfText& text, const Edit& edit) {
  const auto dot = edit.path.find('.');
  if (dot == std::string::npos) return fmt::format("--{}={}", edit.path, yaml::written(edit.value));
  const std::string top = edit.path.substr(0, dot);
  const auto* now = text.root.at(top);
  FactValue whole = now != nullptr && now->kind == compose::Node::Kind::map ? oomplan::value_of(*now) : FactValue::map();
  FactValue* at = &whole;
  for (std::size_t from = dot + 1; from != 0;) {
    const auto next = edit.path.find('.', from);
    FactValue& here = (*at)[edit.path.substr(from, next == std::string::npos ? next : next - from)];
    if (next != std::string::npos && !here.is_map()) here = FactValue::map();
    at = &here;
    from = next == std::string::npos ? 0 : next + 1;
  }
  *at = edit.value;
  return fmt::format("--{}={}", top, json_of(whole).dump());
}

}  // namespace oomplan::transformers
