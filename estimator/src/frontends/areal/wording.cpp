#include "frontends/areal/wording.hpp"

#include <algorithm>
#include <array>
#include <optional>

#include <fmt/format.h>

#include "frontends/areal/archon.hpp"
#include "frontends/areal/relayout.hpp"
#include "frontends/areal/schema.hpp"
#include "frontends/areal/teller.hpp"
#include "job/names.hpp"
#include "layout/letters.hpp"
#include "units/sizes.hpp"

namespace oomplan::areal {
namespace {

/// Our value in AReaL's spelling; nothing where AReaL has no such value.
using Spell = std::optional<FactValue> (*)(std::string_view);

std::optional<FactValue> count(std::string_view text) {
  const auto said = read_count(text);
  return said ? std::optional<FactValue>(*said.value) : std::nullopt;
}
/// null lets the engine choose.
std::optional<FactValue> count_or_null(std::string_view text) { return text == "auto" ? FactValue(nullptr) : count(text); }
std::optional<FactValue> number(std::string_view text) {
  const auto said = read_number(text);
  return said ? std::optional<FactValue>(*said.value) : std::nullopt;
}
std::optional<FactValue> flag(std::string_view text) {
  const auto said = read_flag(text);
  return said ? std::optional<FactValue>(*said.value) : std::nullopt;
}
std::optional<FactValue> as_it_is(std::string_view text) { return FactValue(std::string(text)); }
std::optional<FactValue> recompute(std::string_view text) { return FactValue(text == "full"); }
std::optional<FactValue> attention(std::string_view text) {
  if (text == "hf_flash") return "flash_attention_2";
  return text == "hf_sdpa"    ? std::optional<FactValue>("sdpa")
         : text == "hf_eager" ? std::optional<FactValue>("eager")
                              : std::nullopt;
}
std::optional<FactValue> format(std::string_view text) {
  const auto type = oomplan::parse<DType>(text);
  if (!type) return std::nullopt;
  if (*type == DType::fp32) return "float32";
  return *type == DType::bf16   ? std::optional<FactValue>("bfloat16")
         : *type == DType::fp16 ? std::optional<FactValue>("float16")
                                : std::nullopt;
}
/// SGLang's fp8 caches need no scales in e5m2 (sglang 0.5.10 python/sglang/srt/server_args.py: kv_cache_dtype).
std::optional<FactValue> cache(std::string_view text) {
  return text == "fp8" ? std::optional<FactValue>("fp8_e5m2") : text == "auto" ? std::optional<FactValue>("auto") : std::nullopt;
}
std::optional<FactValue> optimizer(std::string_view text) {
  return text == "adamw" ? std::optional<FactValue>("adam") : text == "sgd" ? std::optional<FactValue>("sgd") : std::nullopt;
}
/// xccl is NCCL on GPUs (areal/api/cli_args.py: weight_update_mode).
std::optional<FactValue> update(std::string_view text) {
  return text == "disk" ? std::optional<FactValue>("disk") : text == "nccl" ? std::optional<FactValue>("xccl") : std::nullopt;
}

/// Weights go to the host, the cache is dropped; there is no other way to sleep.
std::optional<FactValue> sleeps(std::string_view text) {
  return text == "1" ? std::optional<FactValue>(true) : text == "0" ? std::optional<FactValue>(false) : std::nullopt;
}

/// A knob of trainers; the key stands behind the role's path.
struct TrainerRow {
  std::string_view ours, theirs;
  Spell spell;
};
constexpr std::array<TrainerRow, 11> kTrainer{{{"tokens_per_micro_batch", "mb_spec.max_tokens_per_mb", count},
                                               {"recompute", "gradient_checkpointing", recompute},
                                               {"kernels", "attn_impl", attention},
                                               {"precision.storage", "optimizer_dtype", format},
                                               {"precision.compute", "dtype", format},
                                               {"precision.reduce", "grad_reduce_dtype", format},
                                               {"offload", "offload", nullptr},
                                               {"cpu_offload_policy", "fsdp.offload_params", flag},
                                               {"memory_efficient_load", "fsdp.memory_efficient_load", flag},
                                               {"optimizer", "optimizer.type", optimizer},
                                               {"model", "path", as_it_is}}};
/// A knob of servers: the key is that of the engine.
struct ServerRow {
  std::string_view ours, sglang, vllm;
  Spell spell;
};
constexpr std::array<ServerRow, 9> kServer{
    {{"mem_fraction_static", "sglang.mem_fraction_static", "", number},
     {"gpu_memory_utilization", "", "vllm.gpu_memory_utilization", number},
     {"max_running_requests", "sglang.max_running_requests", "vllm.max_num_seqs", count_or_null},
     {"max_model_len", "sglang.context_length", "vllm.max_model_len", count_or_null},
     {"kv", "sglang.kv_cache_dtype", "", cache},
     {"batched_tokens", "sglang.chunked_prefill_size", "", count},
     {"enforce_eager", "sglang.disable_cuda_graph", "vllm.enforce_eager", flag},
     {"sleep", "sglang.enable_memory_saver", "vllm.enable_sleep_mode", sleeps},
     {"concurrency", "rollout.max_concurrent_rollouts", "rollout.max_concurrent_rollouts", nullptr}}};
/// A knob of the whole job.
struct JobRow {
  std::string_view ours, theirs;
  Spell spell;
};
constexpr std::array<JobRow, 4> kJob{{{"prompt_tokens", "train_dataset.max_length", count},
                                      {"response_tokens", "gconfig.max_new_tokens", count},
                                      {"sync.by", "actor.weight_update_mode", update},
                                      {"gpus_per_node", "cluster.n_gpus_per_node", count}}};

constexpr std::string_view kAllocator = "expandable_segments:True";

const BuiltRole* role_of(std::string_view name, const Meaning& m) {
  if (name == "server") name = "rollout";  // servers alone
  const auto it = std::find_if(m.roles.begin(), m.roles.end(), [&](const BuiltRole& r) { return r.name == name; });
  return it == m.roles.end() ? nullptr : &*it;
}
bool own_strings(const Meaning& m) { return m.release >= release_named("1.0.3"); }
std::string layout_key(const BuiltRole& r, const Meaning& m) { return own_strings(m) ? r.path + ".backend" : "allocation_mode"; }

class Wordsmith {
 public:
  Wordsmith(std::string_view knob, std::string_view text, const ArealText& areal)
      : knob_(knob), text_(text), areal_(areal), m_(areal.meaning) {}

  Wording run() {
    const auto dot = knob_.find('.');
    if (const BuiltRole* r = role_of(knob_.substr(0, dot), m_); r != nullptr && dot != std::string_view::npos)
      return role(*r, knob_.substr(dot + 1));
    if (knob_ == "gpus") return gpus();
    if (knob_ == "expandable_segments") return allocator();
    if (knob_ == "sync.by" && m_.release < release_named("0.5.0"))
      return refuse("up to 0.4.1 the entry script chooses how weights are sent");
    if (knob_ == "sync.bucket") return refuse("weight_chunked_mem_mb is an argument of WeightUpdateMeta, in code");
    for (const auto& row : kJob)
      if (row.ours == knob_) return set(std::string(row.theirs), row.spell);
    return no_key();
  }

 private:
  std::string release() const { return fmt::format("AReaL {}", name_of(m_.release)); }
  static Wording refuse(std::string why) { return {{}, std::move(why)}; }
  Wording no_key() const { return refuse(fmt::format("no key of {} sets it", release())); }
  bool knows(std::string_view path) const {
    const auto schema = Schema::of(m_.release);
    return schema && static_cast<bool>(schema->find(areal_.root_class, path));
  }
  Wording set(std::string path, Spell spell) const {
    if (!knows(path)) return refuse(fmt::format("{} has no {}", release(), path));
    auto value = spell(text_);
    if (!value) return refuse(fmt::format("{} of {} has no value that means {}", path, release(), text_));
    return {{{std::move(path), std::move(*value)}}, {}};
  }

  Wording role(const BuiltRole& r, std::string_view knob) const {
    if (knob == "layout") return layout(r);
    if (r.part.kind == PartKind::inference) return server(r, knob);
    if (knob == "offload") return offload(r);
    if (r.part.backend == Backend::archon)
      if (auto words = archon_wording(r, knob, text_)) return *std::move(words);
    if (knob.starts_with("precision.") && !knows(r.path + ".optimizer_dtype")) {
      if (knob == "precision.storage") return set(r.path + ".dtype", format);  // one key for both until 2.0.0
      if (knob == "precision.compute") return refuse(fmt::format("in {} dtype is the format of storage, too", release()));
    }
    for (const auto& row : kTrainer)
      if (row.ours == knob) return set(fmt::format("{}.{}", r.path, row.theirs), row.spell);
    return no_key();
  }
  Wording server(const BuiltRole& r, std::string_view knob) const {
    for (const auto& row : kServer) {
      if (row.ours != knob) continue;
      const std::string_view key = r.part.backend == Backend::sglang ? row.sglang : row.vllm;
      if (key.empty()) return no_key();
      return knob == "concurrency" ? concurrency() : set(std::string(key), row.spell);
    }
    return no_key();
  }

  /// Of a server of SGLang the experts' degree has a key of its own, and an allocation has no letter for it.
  Wording layout(const BuiltRole& r) const {
    constexpr std::string_view degree = "sglang.ep_size";
    const auto wanted = read_letters(text_);
    if (r.name != "rollout" || r.part.backend != Backend::sglang || !wanted || wanted.layout->hybrid) return layout(r, text_);
    const auto* now = areal_.root.at(degree);
    const bool set = now != nullptr && now->kind == compose::Node::Kind::integer && now->integer > 1;
    if (!set && wanted.layout->expert <= 1) return layout(r, text_);
    if (!knows(degree)) return refuse(fmt::format("{} has no {}", release(), degree));
    const auto& l = *wanted.layout;
    Wording out = layout(r, fmt::format("d{}p{}t{}", l.data, l.pipeline, l.tensor));
    if (out.refusal.empty()) out.edits.push_back({std::string(degree), l.expert});
    return out;
  }
  Wording layout(const BuiltRole& r, std::string_view letters) const {
    const std::string key = layout_key(r, m_);
    const auto* n = areal_.root.at(key);
    const auto wanted = read_letters(letters);
    if (n == nullptr || n->kind != compose::Node::Kind::text || !wanted) return no_key();
    if (!own_strings(m_) && r.name != m_.roles.front().name && r.part == m_.roles.front().part && r.part.layout != *wanted.layout)
      return refuse(fmt::format("{} has no part of its own in allocation_mode", r.name));
    const Relayout text = with_layout(n->text, m_.release, r.part, *wanted.layout, own_strings(m_));
    if (!text) return refuse(text.why);
    return {{{key, text.text}}, {}};
  }
  /// Parameters and states go together, through torch_memory_saver, which `enable_offload` sets up (areal/trainer/rl_trainer.py).
  Wording offload(const BuiltRole& r) const {
    const std::string path = r.path + ".offload";
    if (!knows(path)) return refuse(fmt::format("{} has no {}", release(), path));
    if (text_ == "[]") return {{{path, false}}, {}};
    if (text_ != "[parameters, optimizer]") return refuse(fmt::format("{} moves parameters and optimizer states together", path));
    return {{{path, true}, {"enable_offload", true}}, {}};
  }
  /// One rollout is n_samples generations.
  Wording concurrency() const {
    const auto requests = read_count(text_);
    const auto* n = areal_.root.at("gconfig.n_samples");
    const std::int64_t samples =
        n != nullptr && n->kind == compose::Node::Kind::integer ? std::max<std::int64_t>(1, n->integer) : 1;
    if (!requests) return refuse("rollout.max_concurrent_rollouts is a number");
    if (*requests.value % samples != 0)
      return refuse(fmt::format("a rollout is {} generations (gconfig.n_samples), which does not divide {}", samples, text_));
    return {{{"rollout.max_concurrent_rollouts", *requests.value / samples}}, {}};
  }

  Wording gpus() const {
    const auto said = read_count(text_.substr(0, text_.find(" x ")));
    const auto whole = [&](std::string_view path, std::int64_t otherwise) {
      const auto* n = areal_.root.at(path);
      return n != nullptr && n->kind == compose::Node::Kind::integer ? n->integer : otherwise;
    };
    const std::int64_t per_node = whole("cluster.n_gpus_per_node", 8);
    if (!said || per_node <= 0) return no_key();
    if (*said.value < per_node) return {{{"cluster.n_nodes", 1}, {"cluster.n_gpus_per_node", *said.value}}, {}};
    if (*said.value % per_node != 0)
      return refuse(fmt::format("a node has {} GPUs (cluster.n_gpus_per_node), which does not divide {}", per_node, *said.value));
    return {{{"cluster.n_nodes", *said.value / per_node}}, {}};
  }

  /// The environment of the actor's workers. Where the file lists no workers, the list of the release's default is written out.
  Wording allocator() const {
    const std::string list = fmt::format("{}.scheduling_spec", first_path());
    const auto* specs = areal_.root.at(list);
    if (!knows(list) || specs == nullptr || specs->items.empty())
      return refuse(
          fmt::format("{} sets no environment for its workers: export PYTORCH_CUDA_ALLOC_CONF before the launch", release()));
    if (text_ != "true") return refuse("it is taken out of env_vars by hand");
    const std::string path = list + ".0.env_vars.PYTORCH_CUDA_ALLOC_CONF";
    if (const auto* now = areal_.root.at(path); now != nullptr && now->kind == compose::Node::Kind::text && !now->text.empty())
      return {{{path, now->text + "," + std::string(kAllocator)}}, {}};
    if (specs->origin.kind != Origin::Kind::default_) return {{{path, std::string(kAllocator)}}, {}};
    const FactValue all = value_of(*specs);
    FactValue first = all.items().front(), out = FactValue::list();
    first["env_vars"]["PYTORCH_CUDA_ALLOC_CONF"] = std::string(kAllocator);
    out.push_back(std::move(first));
    for (std::size_t i = 1; i < all.items().size(); ++i) out.push_back(all.items()[i]);
    return {{{list, std::move(out)}}, {}};
  }
  std::string first_path() const {
    for (const auto& r : m_.roles)
      if (r.part.kind == PartKind::training) return r.path;
    return "actor";
  }

  std::string_view knob_, text_;
  const ArealText& areal_;
  const Meaning& m_;
};

}  // namespace

Wording wording_of(std::string_view knob, std::string_view text, const ArealText& areal) {
  return Wordsmith(knob, text, areal).run();
}

namespace {

/// A server's model is mostly ${actor.path}: the key where the name stands.
std::string model_of_rollout(const BuiltRole& rollout, const Meaning& m) {
  const Fact *server = m.find("roles.rollout.model"), *actor = m.find("roles.actor.model");
  const bool same = server != nullptr && actor != nullptr && server->origin.place.line == actor->origin.place.line &&
                    server->origin.place.column == actor->origin.place.column;
  if (same) return "actor.path";
  return rollout.part.backend == Backend::vllm ? "vllm.model" : "sglang.model_path";
}

}  // namespace

std::string theirs(std::string_view knob, const Meaning& m) {
  if (knob == "model" && !m.roles.empty()) return m.roles.front().path + ".path";
  if (knob == "sequences_per_step") return "train_dataset.batch_size";
  const auto dot = knob.find('.');
  const BuiltRole* r = dot == std::string_view::npos ? nullptr : role_of(knob.substr(0, dot), m);
  if (r == nullptr) {
    for (const auto& row : kJob)
      if (row.ours == knob) return std::string(row.theirs);
    return knob == "gpus" ? "cluster" : "";
  }
  const std::string_view rest = knob.substr(dot + 1);
  if (rest == "layout") return layout_key(*r, m);
  if (r->part.kind == PartKind::inference) {
    if (rest == "model") return model_of_rollout(*r, m);
    const bool sglang = r->part.backend == Backend::sglang;
    if (rest == "weights") return sglang ? "sglang.dtype" : "vllm.dtype";
    if (rest == "lora.rank") return sglang ? "sglang.max_lora_rank" : "vllm.max_lora_rank";
    if (rest == "lora.slots") return sglang ? "sglang.max_loras_per_batch" : "vllm.max_loras";
    for (const auto& row : kServer)
      if (row.ours == rest) return std::string(sglang ? row.sglang : row.vllm);
    return "";
  }
  if (rest == "lora.rank" || rest == "lora.alpha") return fmt::format("{}.lora_{}", r->path, rest.substr(5));
  for (const auto& row : kTrainer)
    if (row.ours == rest)
      return fmt::format("{}.{}", r->path,
                         rest == "precision.storage" && m.release < release_named("2.0.0") ? "dtype" : row.theirs);
  return "";
}

}  // namespace oomplan::areal
