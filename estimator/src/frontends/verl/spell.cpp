#include "frontends/verl/spell.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <oomplan/units/bytes.hpp>

#include "frontends/verl/meaning_parts.hpp"
#include "job/role_names.hpp"
#include "layout/letters.hpp"
#include "units/sizes.hpp"

namespace oomplan::verl {
namespace {

/// Knobs whose value is one key's: @ stands for the role's path, # for its engine's block, ~ for the servers'.
struct PlainRow {
  std::string_view roles, knob, key;
};
constexpr std::array<PlainRow, 23> kPlain{{
    {"", "prompt_tokens", "data.max_prompt_length"},
    {"", "response_tokens", "data.max_response_length"},
    {"server", "gpu_memory_utilization", "~.gpu_memory_utilization"},
    {"server", "mem_fraction_static", "~.gpu_memory_utilization"},
    {"server", "max_running_requests", "~.max_num_seqs"},
    {"server", "batched_tokens", "~.max_num_batched_tokens"},
    {"server", "max_model_len", "~.max_model_len"},
    {"server", "enforce_eager", "~.enforce_eager"},
    {"fsdp", "reshard_after_forward", "#.reshard_after_forward"},
    {"fsdp", "forward_prefetch", "#.forward_prefetch"},
    {"fsdp", "cpu_offload_policy", "#.offload_policy"},
    {"fsdp", "precision.storage", "#.model_dtype"},
    {"fsdp", "replicas", "#.fsdp_size"},
    {"fsdp", "lora.layered_summon", ""},
    {"megatron", "sequence_parallel", "#.sequence_parallel"},
    {"megatron", "virtual_stages", "#.virtual_pipeline_model_parallel_size"},
    {"megatron", "recompute_layers", "#.override_transformer_config.recompute_num_layers"},
    {"megatron", "recompute_method", "#.override_transformer_config.recompute_method"},
    {"megatron", "optimizer_cpu_offload", "@.optim.override_optimizer_config.optimizer_cpu_offload"},
    {"megatron", "optimizer_offload_fraction", "@.optim.override_optimizer_config.optimizer_offload_fraction"},
    {"megatron", "precision_aware_optimizer", "@.optim.override_optimizer_config.use_precision_aware_optimizer"},
    {"", "sync.bucket", ""},
    {"", "sequences_per_step", "data.train_batch_size"},
}};

FactValue value_of_text(const std::string& text) {
  if (text == "true" || text == "false") return text == "true";
  if (const auto count = read_count(text)) return *count.value;
  if (const auto number = read_number(text)) return *number.value;
  return text;
}

class VerlSpeller {
 public:
  VerlSpeller(const Job& job, const VerlText& text, const VerlMeaning& m, const std::string& knob, const std::string& value)
      : text_(text), m_(m), value_(value) {
    const auto dot = knob.find('.');
    role_ = job.role(knob.substr(0, dot)) != nullptr ? knob.substr(0, dot) : "";
    knob_ = role_.empty() ? knob : knob.substr(dot + 1);
    fact_ = "roles." + role_ + ".";
    megatron_ = m.text(fact_ + "engine") == "megatron";
  }

  Spelt run() {
    if (knob_ == "sync.bucket") return bucket();
    if (knob_ == "sequences_per_step") return batch();
    if (knob_ == "lora.layered_summon") return layered();
    if (knob_ == "tokens_per_micro_batch") return budget(fact_ + "micro_batch", budget_key());
    if (knob_ == "logprob_tokens_per_micro_batch")
      return budget("job.old_logprob_micro_batch", fmt::format("{}.rollout.log_prob_max_token_len_per_gpu", kArr));
    if (knob_ == "offload") return offload();
    if (knob_ == "recompute") return recompute();
    if (knob_ == "layout") return serves() ? server_layout() : trainer_layout();
    if (knob_ == "offload_activations") return flag(model() + ".enable_activation_offload", value_ == "verl");
    if (knob_ == "reentrant") return {};  // follows from the offload of activations
    if (knob_ == "liger") return flag(model() + ".use_liger", value_ != "[]" && value_ != "none");
    if (knob_ == "replicas") return replicas();
    return plain();
  }

  std::string key() {
    const Spelt spelt = run();
    return spelt.edits.empty() ? "" : spelt.edits.front().path;
  }

 private:
  std::string path() const { return role_ == "critic" ? "critic" : role_ == "trainer" ? "" : fmt::format("{}.{}", kArr, role_); }
  std::string model() const {
    return role_ == "critic" ? "critic.model" : role_ == "trainer" ? "model" : fmt::format("{}.model", kArr);
  }
  /// Counts from 1; 0: none.
  std::size_t teacher() const {
    for (std::size_t n = 1; n <= m_.teachers.size(); ++n)
      if (role_ == teacher_name(n)) return n;
    return 0;
  }
  bool serves() const { return role_ == "rollout" || role_ == "reward" || teacher() > 0; }
  std::string server() const {
    if (role_ == "reward") return m_.reward + ".rollout";
    return teacher() > 0 ? m_.teachers[teacher() - 1] + ".inference" : fmt::format("{}.rollout", kArr);
  }
  std::string block() const {
    if (role_ == "trainer") return "engine";
    if (megatron_) return path() + ".megatron";
    if (role_ != "critic") return path() + ".fsdp_config";
    return text_.release >= release_named("0.8.0") ? "critic.fsdp" : "critic.model.fsdp_config";
  }
  Spelt no_word(std::string why) const { return {{}, std::move(why)}; }
  Edit edit(std::string at, FactValue value) const {
    const bool known = text_.root.at(at) != nullptr;
    return {std::move(at), std::move(value), !known};
  }
  Spelt one(std::string at, FactValue value) const { return {{edit(std::move(at), std::move(value))}, {}}; }
  Spelt flag(std::string at, bool on) const {
    if (text_.root.at(at) == nullptr) return no_word(fmt::format("verl {} has no {}", name_of(text_.release), at));
    return one(std::move(at), on);
  }

  Spelt plain() const {
    const std::string_view engine = serves() ? "server" : megatron_ ? "megatron" : "fsdp";
    for (const PlainRow& row : kPlain) {
      if (row.knob != knob_ || (row.roles.empty() ? !role_.empty() : role_.empty() || row.roles != engine)) continue;
      std::string at(row.key);
      if (at.starts_with('@')) at.replace(0, 1, path());
      if (at.starts_with('#')) at.replace(0, 1, block());
      if (at.starts_with('~')) at.replace(0, 1, server());
      const bool added = at.find("override_") != std::string::npos || teacher() > 0;  // where a user adds keys
      if (text_.root.at(at) == nullptr && !added) return no_word(fmt::format("verl {} has no {}", name_of(text_.release), at));
      return one(std::move(at), value_ == "auto" || value_ == "none" ? FactValue(nullptr) : value_of_text(value_));
    }
    return no_word(fmt::format("verl has no key for {}", knob_));
  }

  std::string budget_key() const {
    if (role_ == "actor") return path() + ".ppo_max_token_len_per_gpu";
    if (role_ == "ref") return path() + ".log_prob_max_token_len_per_gpu";
    return role_ == "critic" ? "critic.ppo_max_token_len_per_gpu" : "data.max_token_len_per_gpu";
  }
  /// A budget counts the tokens of one GPU; without dynamic batches it is so many sequences.
  Spelt budget(const std::string& batch, const std::string& key) const {
    const auto tokens = read_count(value_);
    if (!tokens) return no_word("verl has no automatic budget");
    if (!m_.flag(batch + ".dynamic")) {
      const ToldFact* sequences = m_.find(batch + ".sequences_per_data_parallel_rank");
      const std::int64_t longest = m_.whole(batch + ".sequence_length_padded");
      if (sequences == nullptr || longest <= 0 || *tokens.value % longest != 0)
        return no_word("the batches of this job count sequences (use_dynamic_bsz=False)");
      return one(sequences->origin.place.path.empty() ? key : sequences->where, *tokens.value / longest);
    }
    if (role_ == "critic" && m_.find(batch + ".tokens_per_gpu") != nullptr && text_.root.at(key) != nullptr &&
        m_.find(batch + ".tokens_per_gpu")->where != key)
      return no_word("this trainer takes the critic's budget from no file");
    const std::int64_t context =
        std::max<std::int64_t>(1, m_.whole(role_.empty() ? "roles.actor.layout.cp" : fact_ + "layout.cp", 1));
    if (*tokens.value % context != 0) return no_word("a budget counts the tokens of one GPU");
    return one(key, *tokens.value / context);
  }

  Spelt offload() const {
    const bool parameters = value_.find("parameters") != std::string::npos,
               optimizer = value_.find("optimizer") != std::string::npos;
    Spelt out = one(block() + ".param_offload", parameters);
    if (role_ != "ref") out.edits.push_back(edit(block() + ".optimizer_offload", optimizer));
    return out;
  }

  Spelt recompute() const {
    if (!megatron_) {
      if (value_ == "selective") return no_word("verl has no selective recomputation of FSDP");
      return flag(model() + ".enable_gradient_checkpointing", value_ == "full");
    }
    const std::string at = block() + ".override_transformer_config.recompute_";
    if (value_ == "none") return one(at + "granularity", nullptr);
    Spelt out = one(at + "granularity", value_);
    if (value_ == "full") {
      out.edits.push_back(edit(at + "method", "uniform"));
      out.edits.push_back(edit(at + "num_layers", 1));
    }
    return out;
  }

  Spelt server_layout() const {
    const auto layout = read_layout(value_);
    if (!layout || layout->context > 1) return no_word("no layout of verl's servers");
    if (m_.whole(fact_ + "layout.ep", 1) > 1) return no_word("not supported yet: other layouts of servers that split experts");
    if (layout->world() != m_.whole(fact_ + "gpus")) return no_word("verl's servers take all GPUs of their pool");
    if (m_.teachers.size() > 1 && teacher() > 0) return no_word("not supported yet: other layouts of several teachers");
    const std::string at = server() + ".";
    Spelt out = one(at + "tensor_model_parallel_size", layout->tensor);
    if (layout->pipeline != m_.whole(fact_ + "layout.pp", 1))
      out.edits.push_back(edit(at + "pipeline_model_parallel_size", layout->pipeline));
    return out;
  }
  Spelt trainer_layout() const {
    const auto layout = read_layout(value_);
    if (!layout || layout->world() != m_.whole(fact_ + "gpus")) return no_word("verl's trainers take all GPUs of their pool");
    if (!megatron_) {
      if (layout->tensor > 1 || layout->pipeline > 1) return no_word("verl has no tensor or pipeline parallelism of FSDP");
      const std::string role = path() + ".ulysses_sequence_parallel_size";
      return one(role_ == "trainer" ? block() + ".ulysses_sequence_parallel_size" : role, layout->context);
    }
    Spelt out = one(block() + ".tensor_model_parallel_size", layout->tensor);
    out.edits.push_back(edit(block() + ".pipeline_model_parallel_size", layout->pipeline));
    out.edits.push_back(edit(block() + ".context_parallel_size", layout->context));
    return out;
  }
  static std::optional<Layout> read_layout(const std::string& text) {
    if (text.find(':') != std::string::npos) return std::nullopt;
    return read_letters(text).layout;
  }

  Spelt replicas() const {
    const auto n = read_count(value_);
    const std::int64_t gpus = m_.whole(fact_ + "gpus", 1);
    if (!n || *n.value < 1 || gpus % *n.value != 0) return no_word("no size of a shard group");
    return one(block() + ".fsdp_size", *n.value == 1 ? FactValue(-1) : FactValue(gpus / *n.value));
  }

  /// Servers that got no base at their start cannot take adapters alone.
  Spelt layered() const {
    const std::string at = fmt::format("{}.rollout.", kArr);
    Spelt out = flag(at + "layered_summon", value_ == "true");
    if (!out.edits.empty() && value_ == "true" && m_.text("roles.rollout.load_format").find("dummy") != std::string::npos)
      out.edits.push_back(edit(at + "load_format", "safetensors"));
    return out;
  }
  Spelt bucket() const {
    const ToldFact* f = m_.find("weight_update.buffer_bytes");
    const auto size = read_bytes(value_);
    if (f == nullptr || !size || *size.value % kMiB != 0) return no_word("this release sends weights without a bucket");
    const std::string engine = fmt::format("{}.rollout.checkpoint_engine.update_weights_bucket_megabytes", kArr);
    return one(text_.root.at(engine) != nullptr ? engine : fmt::format("{}.rollout.update_weights_bucket_megabytes", kArr),
               *size.value / kMiB);
  }
  Spelt batch() const {
    const auto n = read_count(value_);
    const std::int64_t samples = std::max<std::int64_t>(1, m_.whole("job.samples_per_prompt", 1));
    if (!n || *n.value % samples != 0) return no_word("the batch counts prompts");
    return one("data.train_batch_size", *n.value / samples);
  }

  const VerlText& text_;
  const VerlMeaning& m_;
  const std::string& value_;
  std::string role_, knob_, fact_;
  bool megatron_ = false;
};

std::string written(const FactValue& value) {
  if (value.is_null()) return "null";
  if (value.kind() == FactValue::Kind::boolean) return value.boolean() ? "True" : "False";
  return value.plain();
}

}  // namespace

Spelt spell(const Job& job, const VerlText& text, const VerlMeaning& m, const std::string& knob, const std::string& value) {
  return VerlSpeller(job, text, m, knob, value).run();
}

std::string key_of_knob(const VerlText& text, const VerlMeaning& m, std::string_view knob) {
  // a value that every speller takes, for its key alone
  Job job;
  for (const std::string& name : m.roles) {
    Role role;
    role.name = name;
    job.roles.push_back(std::move(role));
  }
  const std::string name = std::string(knob.substr(knob.find('.') + 1));
  const std::string role(knob.substr(0, knob.find('.')));
  const std::string value = name == "layout" ? fmt::format("d{}", m.whole("roles." + role + ".gpus", 1))
                            : name == "sync.bucket" || knob == "sync.bucket" ? "1GiB"
                                                                             : "0";
  return VerlSpeller(job, text, m, std::string(knob), value).key();
}

std::string override_text(const Edit& edit) {
  return fmt::format("{}{}={}", edit.added ? "+" : "", edit.path, written(edit.value));
}

}  // namespace oomplan::verl
