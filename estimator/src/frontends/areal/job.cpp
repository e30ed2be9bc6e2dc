#include "frontends/areal/job.hpp"

#include <algorithm>
#include <array>
#include <charconv>

#include <fmt/format.h>
#include <oomplan/units/bytes.hpp>

#include "frontends/areal/archon.hpp"
#include "frontends/areal/batches.hpp"
#include "frontends/areal/data_sets.hpp"
#include "frontends/areal/lora.hpp"
#include "frontends/areal/megatron.hpp"
#include "frontends/areal/ranges.hpp"
#include "frontends/areal/server_groups.hpp"
#include "frontends/areal/teller.hpp"
#include "frontends/areal/turns.hpp"
#include "job/limits.hpp"
#include "layout/letters.hpp"
#include "units/sizes.hpp"

namespace oomplan::areal {
namespace {

/// How a fact of a trainer becomes a setting.
struct FactRow {
  std::string_view fact, knob;
  std::string (*text)(const FactValue&);  ///< "" leaves the knob to its default
};

std::string as_text(const FactValue& v) { return v.plain(); }
std::string granularity(const FactValue& v) {
  const FactValue* g = v.find("granularity");
  return g == nullptr ? "" : g->plain();
}
std::string optimizer(const FactValue& v) {
  return v == FactValue("adam") || v == FactValue("adam_bf16") ? "adamw" : v.plain();  // the latter is refused but under Megatron
}
std::string between_phases(const FactValue& v) {
  return v == FactValue(true) ? "[parameters, optimizer]" : v == FactValue(false) ? "[]" : "";
}
/// attn_impl is what transformers gets; its names of flash attention begin so, or name a kernel of the hub.
std::string kernels(const FactValue& v) {
  const std::string name = v.plain();
  if (name == "sdpa") return "hf_sdpa";
  return name == "eager" ? "hf_eager" : "hf_flash";
}
bool known_attention(std::string_view name) {
  return name.empty() || name == "sdpa" || name == "eager" || name.find("flash") != std::string_view::npos;
}
/// A server's names of formats; "auto" is the checkpoint's, which an actor's file makes bf16.
std::string weights(const FactValue& v) {
  const std::string name = v.plain();
  return name == "auto" ? "" : name == "half" ? "fp16" : name == "float" ? "fp32" : name;
}
/// FSDP pads a micro-batch to a multiple of 256 tokens (areal/utils/data.py). A budget beyond all sequences is none.
std::string padded(const FactValue& v) {
  return v.is_integer() && kTokenLimit.holds(v.integer()) ? fmt::format("{}", round_up(v.integer(), 256)) : "";
}

constexpr FactRow kTrainerRows[] = {
    {"model", "model", as_text},
    {"micro_batch.tokens_per_micro_batch", "tokens_per_micro_batch", padded},
    {"recompute", "recompute", granularity},
    {"attention", "kernels", kernels},
    {"param_dtype", "precision.storage", as_text},
    {"compute_dtype", "precision.compute", as_text},
    {"reduce_dtype", "precision.reduce", as_text},
    {"optimizer", "optimizer", optimizer},
    {"offload_between_phases", "offload", between_phases},
    {"param_offload", "cpu_offload_policy", as_text},
    {"load_on_cpu_rank0", "memory_efficient_load", as_text},
};

/// Settings that Megatron's engine has, too.
bool of_every_engine(std::string_view knob) {
  return knob == "model" || knob == "tokens_per_micro_batch" || knob == "recompute" || knob == "precision.storage" ||
         knob == "precision.compute" || knob == "optimizer" || knob == "offload";
}

/// The key whose string lays the role out.
std::string string_of(const BuiltRole& r, const Meaning& m) {
  return m.release >= release_named("1.0.3") ? r.path + ".backend" : "allocation_mode";
}

RoleKind kind_of(const BuiltRole& r, const Meaning& m) {
  if (m.kind == "rollout") return RoleKind::server;
  if (r.name == "trainer") return RoleKind::trainer;
  if (r.name == "critic") return RoleKind::critic;
  if (r.name == "ref") return RoleKind::reference;
  if (r.name == "teacher") return RoleKind::teacher;
  return r.name == "rollout" ? RoleKind::rollout : RoleKind::actor;
}

class Translator {
 public:
  Translator(const Meaning& m, const compose::Node& root, const Surroundings& around, std::vector<Note>& notes)
      : m_(m), root_(root), around_(around), notes_(notes) {}

  NativeText run() {
    for (Problem p : m_.refusals) {
      p.kind = ProblemKind::refused_by_framework;
      out_.problems.push_back(std::move(p));
    }
    refuse_what_is_missing();
    for (auto& p : range_problems(root_)) out_.problems.push_back(std::move(p));
    if (around_.refusals_only || !out_.problems.empty()) return std::move(out_);
    job();
    for (const std::string_view name : {"rollout", "actor", "trainer", "ref", "critic", "teacher"})
      for (const auto& r : m_.roles)
        if (r.name == name) role(r);
    if (m_.kind == "rollout") serve_alone();
    return std::move(out_);
  }

 private:
  /// Servers of a job that trains nothing are a job of their own, whose role is `server`.
  void serve_alone() {
    constexpr std::string_view kRollout = "rollout.";
    std::erase_if(out_.settings, [](const Setting& s) { return s.key == "sequences_per_step"; });
    for (Setting& s : out_.settings)
      if (s.key.starts_with(kRollout)) s.key.replace(0, kRollout.size(), "server.");
  }

  const Fact* fact(std::string_view key) const { return m_.find(key); }
  std::int64_t whole(std::string_view key, std::int64_t otherwise = 0) const {
    const Fact* f = fact(key);
    return f != nullptr && f->value.is_integer() ? f->value.integer() : otherwise;
  }
  bool flag(std::string_view path) const {
    const auto* n = root_.at(path);
    return n != nullptr && n->kind == compose::Node::Kind::boolean && n->boolean;
  }
  bool above(std::string_view path, double bound) const {
    const auto* n = root_.at(path);
    if (n == nullptr) return false;
    if (n->kind == compose::Node::Kind::real) return n->real > bound;
    return n->kind == compose::Node::Kind::integer && static_cast<double>(n->integer) > bound;
  }
  static Origin derived(std::string because, Origin::Rule rule = Origin::Rule::none) {
    return {Origin::Kind::derived, {}, std::move(because), {}, rule};
  }

  void set(std::string key, std::string text, Origin origin) {
    if (!text.empty()) out_.settings.push_back({std::move(key), std::move(text), std::move(origin)});
  }

  // ---- not supported yet, by name

  void refuse(const Origin& at, std::string_view path, std::string found, std::string_view what) {
    Place place = at.place;
    place.path = path;
    out_.problems.push_back({std::move(place), std::move(found), {}, {}, fmt::format("not supported yet: {}", what)});
  }
  void refuse_key(std::string_view path, std::string_view what) {
    const auto* n = root_.at(path);
    if (n != nullptr) refuse(n->origin, path, compose::describe(*n), what);
  }
  void refuse_what_is_missing() {
    for (const auto& r : m_.roles) {
      if (r.part.backend == Backend::megatron || r.part.backend == Backend::realhf) refuse_of_megatron(r);
      for (auto& p : archon_problems(m_, root_, r, string_of(r, m_))) out_.problems.push_back(std::move(p));
      if (r.part.kind == PartKind::inference)
        refuse_of_server(r);
      else
        refuse_of_trainer(r);
      if (m_.kind == "reward_model") refuse_of_reward_model(r);
    }
  }
  void refuse_of_reward_model(const BuiltRole& r) {
    if (r.part.backend != Backend::fsdp)
      refuse(r.allocation, string_of(r, m_), fmt::format("'{}'", spelling(r.part.backend)), "a reward model of this engine");
  }
  /// Up to 0.3.4 the engine is an experiment, which sends weights through files and leaves the layers to Megatron; until 1.0.4
  /// context-parallel ranks gather all logits.
  void refuse_of_megatron(const BuiltRole& r) {
    const auto whole = [&](std::string_view what) {
      refuse(r.allocation, string_of(r, m_), fmt::format("'{}'", spelling(r.part.backend)), what);
    };
    if (r.part.backend == Backend::realhf) return whole("the model of the realhf trainer");
    if (m_.release < release_named("0.4.0")) return whole("the experimental Megatron engine of AReaL 0.3.1 to 0.3.4");
    if (m_.release < release_named("0.5.0") && r.name == "critic") {
      Place place = r.allocation.place;
      place.path = r.path;
      out_.problems.push_back({std::move(place),
                               "a critic on Megatron",
                               "a layout of FSDP",
                               {},
                               fmt::format("AReaL {} has none (areal/engine/ppo/critic.py)", name_of(m_.release))});
    }
    if (r.part.layout.context > 1 && m_.release < release_named("1.0.4"))
      whole("context parallelism of Megatron before AReaL 1.0.4");
    for (const MegatronRefusal& found : megatron_refusals(m_, root_, r)) {
      refuse_key(found.path, found.what);
      if (!found.theirs || out_.problems.empty()) continue;
      out_.problems.back().why = found.what;
      out_.problems.back().kind = ProblemKind::refused_by_framework;
    }
  }
  void refuse_of_trainer(const BuiltRole& r) {
    const auto at = [&](std::string_view name) { return fmt::format("{}.{}", r.path, name); };
    // before #667 (0.5.0) every rank gathered the logits of the whole vocabulary
    if (r.part.backend == Backend::fsdp && r.part.layout.tensor > 1 && m_.release < release_named("0.5.0"))
      refuse(r.allocation, string_of(r, m_), fmt::format("'{}'", letters(r.part.layout)),
             "tensor parallelism of FSDP before AReaL 0.5.0");
    const bool megatron = r.part.backend == Backend::megatron;
    if (!megatron)
      if (auto problem = lora_problem(root_, r)) out_.problems.push_back(std::move(*problem));
    if (root_.at(at("aent")) != nullptr && (r.part.backend != Backend::fsdp || r.part.layout.tensor > 1))
      refuse_key(at("aent"), "the recipe AEnt outside of FSDP, or with a vocabulary that ranks split");
    if (r.part.backend != Backend::archon && flag(at("enable_tree_training")))
      refuse_key(at("enable_tree_training"), "tree training outside of Archon");
    if (flag(at("use_kernels"))) refuse_key(at("use_kernels"), "kernels of the hub (use_kernels)");
    if (flag(at("fsdp.per_layer_optim_step"))) refuse_key(at("fsdp.per_layer_optim_step"), "the optimizer step layer by layer");
    const auto* attention = root_.at(at("attn_impl"));
    if (r.part.backend == Backend::fsdp && attention != nullptr && !known_attention(attention->text))
      refuse_key(at("attn_impl"), "this attention");
    const auto* type = root_.at(at("optimizer.type"));
    if (!megatron && type != nullptr && type->text == "adam_bf16")
      refuse_key(at("optimizer.type"), "AnyPrecisionAdamW (adam_bf16)");
    const auto* update = root_.at(at("weight_update_mode"));
    if (r.name == "actor" && update != nullptr && update->text == "awex")
      refuse_key(at("weight_update_mode"), "the weight update by awex");
  }
  void refuse_of_server(const BuiltRole& r) {
    if (r.part.backend == Backend::sglang) {
      if (above("sglang.cpu_offload_gb", 0)) refuse_key("sglang.cpu_offload_gb", "weights of a server on the host");
      if (above("sglang.dp_size", 1) && !flag("sglang.enable_dp_attention"))
        refuse_key("sglang.dp_size", "data parallelism inside SGLang");
    } else {
      if (above("vllm.cpu_offload_gb", 0)) refuse_key("vllm.cpu_offload_gb", "weights of a server on the host");
    }
  }

  // ---- the job

  void job() {
    const std::int64_t per_node = whole("cluster.gpus_per_node", 8), gpus = whole("cluster.nodes", 1) * per_node;
    const Fact* nodes = fact("cluster.nodes");
    set("framework", fmt::format("areal {}", version()), derived(fmt::format("AReaL {}", name_of(m_.release))));
    Origin origin = nodes != nullptr ? nodes->origin : around_.gpu_origin;
    if (!around_.gpu_origin.because.empty()) origin.because = around_.gpu_origin.because;
    set("gpus", fmt::format("{} x {}", gpus, around_.gpu), origin);
    copy("cluster.gpus_per_node", "gpus_per_node");
    lengths();
    sequences();
    allocator();
    weight_update();
  }
  /// "2.0.0+" is the development behind 2.0.0.
  std::string version() const {
    std::string name(name_of(m_.release));
    if (name.ends_with('+')) name.pop_back();
    return name;
  }
  void copy(std::string_view key, std::string knob) {
    const Fact* f = fact(key);
    if (f != nullptr) set(std::move(knob), as_text(f->value), f->origin);
  }
  /// A prompt that the dataset does not limit can be as long as the tightest limit of a whole sequence lets it be.
  void lengths() {
    const Fact* prompt = fact("job.max_prompt_length");
    copy("job.max_response_length", "response_tokens");
    if (prompt != nullptr && !prompt->value.is_null()) {
      set("prompt_tokens", as_text(prompt->value), prompt->origin);
      return last_turn(*prompt);
    }
    const std::int64_t response = whole("job.max_response_length");
    std::int64_t longest = INT64_MAX;
    std::string by;
    for (const auto& [key, words] : {std::pair{"job.max_total_length", "gconfig.max_tokens"},
                                     std::pair{"roles.rollout.max_model_len", "the server's context"},
                                     std::pair{"roles.actor.micro_batch.tokens_per_micro_batch", "mb_spec.max_tokens_per_mb"},
                                     std::pair{"roles.trainer.micro_batch.tokens_per_micro_batch", "mb_spec.max_tokens_per_mb"}})
      if (const std::int64_t n = whole(key); n > response && n < longest) longest = n, by = words;
    if (longest == INT64_MAX) return length_of_data_set(prompt);
    set("prompt_tokens", fmt::format("{}", longest - response),
        derived(fmt::format("train_dataset.max_length is not set: {} less what is generated", by)));
    Place place = prompt != nullptr ? prompt->origin.place : Place{};
    place.path = "train_dataset.max_length";
    notes_.push_back(
        {Note::Level::warning, place,
         fmt::format("not set: the longest prompt is taken as {} tokens, {} less what is generated", longest - response, by)});
  }
  /// The last of several turns begins with the whole conversation before it.
  void last_turn(const Fact& prompt) {
    const std::int64_t longest = longest_conversation(m_, root_), response = whole("job.max_response_length");
    if (!prompt.value.is_integer() || longest - response <= prompt.value.integer()) return;
    const Turns turns = *turns_of(root_);
    set("prompt_tokens", fmt::format("{}", longest - response),
        derived(fmt::format("{}: the last turn begins with the conversation before it", turns.path)));
    Place place = turns.node->origin.place;
    place.path = turns.path;
    notes_.push_back(
        {Note::Level::warning, place,
         fmt::format("the last turn is taken to begin with {} tokens, so that the conversation has {}{}", longest - response,
                     longest, turns.number > 0 ? "; messages between the turns are counted only where a limit holds them" : "")});
  }
  /// Nothing of the file bounds a sample: what the data set itself is known to hold does.
  void length_of_data_set(const Fact* prompt) {
    const auto* set_of = root_.at("train_dataset.path");
    const auto* type = root_.at("train_dataset.type");
    if (set_of == nullptr || type == nullptr) return;
    const Fact* model = fact("roles.trainer.model");
    const LongestSample longest = longest_sample(set_of->text, type->text, model != nullptr ? as_text(model->value) : "");
    if (longest.tokens == 0) return;
    const std::string why = fmt::format("the longest sample of {} ({})", set_of->text, longest.by);
    set("prompt_tokens", fmt::format("{}", longest.tokens), derived(why));
    Place place = prompt != nullptr ? prompt->origin.place : Place{};
    place.path = "train_dataset.max_length";
    notes_.push_back({Note::Level::warning, place, fmt::format("not set: taken as {} tokens, {}", longest.tokens, why)});
  }
  void sequences() {
    const Fact* prompts = fact("job.train_batch_prompts");
    const std::int64_t n = step_sequences(m_, root_);
    if (prompts == nullptr || n == 0) return;
    Origin origin = prompts->origin;
    if (m_.kind == "rl") origin.because = "prompts times samples, divided by ppo_n_minibatches";
    if (sequences_together(m_) > 1) origin.because = "two sequences of every pair";
    set("sequences_per_step", fmt::format("{}", n), std::move(origin));
  }
  /// Nothing but the environment of the workers sets the allocator: scheduling_spec[].env_vars, and of the launchers one text
  /// "A=B,C=D" (areal/launcher/local.py, until 0.5.1).
  void allocator() {
    const auto* launcher = root_.at("launcher.trainer_env_vars");
    if (launcher != nullptr && launcher->text.find("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True") != std::string::npos)
      return set("expandable_segments", "true", launcher->origin);
    for (const std::string path :
         {"actor.scheduling_spec.0.env_vars.PYTORCH_CUDA_ALLOC_CONF", "actor.scheduling_spec.0.env_vars.PYTORCH_ALLOC_CONF"}) {
      const auto* n = root_.at(path);
      if (n == nullptr || n->text.find("expandable_segments:True") == std::string::npos) continue;
      return set("expandable_segments", "true", n->origin);
    }
  }
  /// Before 1.0.0 LoRA has entry scripts of its own: that for SGLang, until 0.5.0 the only one, looks at no key.
  bool sends_adapters_through_files() const {
    const bool sglang = std::any_of(m_.roles.begin(), m_.roles.end(),
                                    [](const BuiltRole& r) { return r.name == "rollout" && r.part.backend == Backend::sglang; });
    return m_.release < release_named("0.5.0") || (sglang && m_.release < release_named("1.0.0"));
  }
  void weight_update() {
    const Fact* mode = fact("weight_update.mode");
    if (mode == nullptr) return;
    const std::string how = as_text(mode->value);
    if (flag("actor.use_lora") && sends_adapters_through_files())
      set("sync.by", "disk",
          derived("the entry script of LoRA calls WeightUpdateMeta.from_disk (examples/lora/gsm8k_grpo_lora.py)"));
    else
      set("sync.by", how == "disk" ? "disk" : "nccl", mode->origin);
    const Fact* bucket = fact("weight_update.buffer_bytes");
    if (bucket != nullptr && bucket->value.is_integer())
      set("sync.bucket", fmt::format("{}MiB", bucket->value.integer() / kMiB), bucket->origin);
  }

  // ---- a role

  void role(const BuiltRole& r) {
    Place place = r.allocation.place;
    place.path = r.path;
    out_.roles.push_back({kind_of(r, m_), place});
    const ServerGroups groups = groups_of_server(root_, r);
    const bool experts = groups.experts > 1;
    set(r.name + ".layout", letters(r.part.layout) + (experts ? fmt::format("e{}", groups.experts) : ""),
        experts ? groups.experts_origin : r.allocation);
    for (const LoraSetting& s : groups.settings) set(fmt::format("{}.{}", r.name, s.knob), s.text, s.origin);
    if (!r.beside.empty())
      set(r.name + ".beside", r.beside, r.allocation);
    else
      wrap_around(r);
    if (r.in_process) set(r.name + ".in_process", "true", derived(r.why_in_process));
    if (r.part.kind == PartKind::inference)
      server(r);
    else
      trainer(r);
  }
  /// The local scheduler starts again at the first GPU when all are taken (areal/infra/scheduler/local.py 1.0.4): roles that
  /// each take all GPUs share them, and nobody sleeps.
  void wrap_around(const BuiltRole& r) {
    const auto* scheduler = root_.at("scheduler.type");
    if (scheduler == nullptr || scheduler->text != "local") return;
    const std::int64_t have = whole("cluster.nodes", 1) * whole("cluster.gpus_per_node", 8);
    for (const auto& first : m_.roles) {
      if (&first == &r) return;
      if (!first.beside.empty() || first.part.layout.world() != have || r.part.layout.world() != have) continue;
      set(r.name + ".beside", first.name, derived("the local scheduler hands the same GPUs out again"));
      if (r.name != "rollout") return;
      set("rollout.sleep", "0", derived("nothing sleeps when the scheduler wraps around"));
      return refuse_nccl_to_oneself(have);
    }
  }
  void refuse_nccl_to_oneself(std::int64_t gpus) {
    const Fact* mode = fact("weight_update.mode");
    if (mode == nullptr || as_text(mode->value) == "disk") return;
    Place place = mode->origin.place;
    place.path = "actor.weight_update_mode";
    out_.problems.push_back({std::move(place),
                             fmt::format("'{}'", as_text(mode->value)),
                             "disk",
                             {},
                             fmt::format("the local scheduler gives {} to actor and rollout, and NCCL cannot connect two "
                                         "processes on one GPU",
                                         gpus == 1 ? "the one GPU" : fmt::format("the same {} GPUs", gpus))});
  }
  void trainer(const BuiltRole& r) {
    const bool megatron = r.part.backend == Backend::megatron, archon = r.part.backend == Backend::archon;
    set(r.name + ".engine", megatron ? "megatron" : archon ? "archon" : "fsdp2", r.allocation);
    const std::vector<ArchonSetting> own = archon_settings(m_, root_, r);
    for (const auto& row : kTrainerRows) {
      if (megatron && !of_every_engine(row.knob)) continue;
      const Fact* f = fact(fmt::format("roles.{}.{}", r.name, row.fact));
      if (f == nullptr || (row.knob == "optimizer" && f->value.is_null())) continue;
      if (archon && (row.knob == "kernels" || row.knob == "memory_efficient_load")) continue;
      if (std::any_of(own.begin(), own.end(), [&](const ArchonSetting& s) { return s.knob == row.knob; })) continue;
      if (archon && row.knob == "tokens_per_micro_batch") {
        pages(r, f->value, f->origin);
        continue;
      }
      set(fmt::format("{}.{}", r.name, row.knob), row.text(f->value), f->origin);
    }
    if (megatron)
      for (auto& s : megatron_of_trainer(m_, root_, r))
        set(fmt::format("{}.{}", r.name, s.knob), std::move(s.text), std::move(s.origin));
    for (const ArchonSetting& s : own) set(fmt::format("{}.{}", r.name, s.knob), s.text, s.origin);
    for (auto& s : lora_of_trainer(m_, root_, r))
      set(fmt::format("{}.{}", r.name, s.knob), std::move(s.text), std::move(s.origin));
    if (!megatron) sgd(r);
    images(r);
    unlimited(r);
    more_micro_batches(r);
    if (r.name == "trainer" && !megatron) loss(r);
    if (above(r.path + ".aent.entropy_clamp", 0))  // recipe/AEnt/actor.py: aent_grpo_loss_fn
      set(r.name + ".head", "areal_clamped", root_.at(r.path + ".aent.entropy_clamp")->origin);
  }
  /// Adam is fused and takes its weight decay off the parameters; torch.optim.SGD gets no form, and adds it to the gradients
  /// (areal/engine/fsdp_engine.py, areal/experimental/engine/archon_engine.py, _create_optimizer, 1.0.4).
  void sgd(const BuiltRole& r) {
    const Fact* kind = fact(fmt::format("roles.{}.optimizer", r.name));
    if (kind == nullptr || as_text(kind->value) != "sgd") return;
    set(r.name + ".optimizer_form", "foreach", derived("torch.optim.SGD gets no form: foreach on GPUs"));
    const auto* decay = root_.at(r.path + ".optimizer.weight_decay");
    const bool whole_number = decay != nullptr && decay->kind == compose::Node::Kind::integer;
    if (decay != nullptr && (whole_number || decay->kind == compose::Node::Kind::real))
      set(r.name + ".weight_decay", whole_number ? fmt::format("{}", decay->integer) : number_text(decay->real), decay->origin);
  }
  /// Whole pages are padded to where the model is known (frontends/assemble).
  void pages(const BuiltRole& r, const FactValue& budget, Origin origin) {
    if (!budget.is_integer() || !kTokenLimit.holds(budget.integer())) return;
    if (pads_to_pages(root_, r)) {
      origin.because = kWholePages;
      origin.rule = Origin::Rule::whole_pages;
    }
    set(r.name + ".tokens_per_micro_batch", fmt::format("{}", budget.integer()), std::move(origin));
  }
  /// Without a budget everything a rank gets is one micro-batch, or as many as mb_spec.n_mbs says.
  void unlimited(const BuiltRole& r) {
    const Fact* f = fact(fmt::format("roles.{}.micro_batch.tokens_per_micro_batch", r.name));
    if (f != nullptr && !padded(f->value).empty()) return;
    const std::int64_t sequences = sequences_without_budget(m_, root_, r), length = longest_sequence();
    if (sequences <= 0) return;
    Place place = f != nullptr ? f->origin.place : Place{};
    place.path = r.path + ".mb_spec.max_tokens_per_mb";
    if (length == 0) {
      set(r.name + ".tokens_per_micro_batch", fmt::format("{}", sequences),
          derived(std::string(kLongestOfModel), Origin::Rule::longest_of_model));
      notes_.push_back(
          {Note::Level::warning, place,
           fmt::format("not set, nor how long a sample gets: {} sequences are one micro-batch, each taken as long as "
                       "the model's positions. An upper bound: train_dataset.max_length=N says it",
                       sequences)});
      return;
    }
    const std::int64_t tokens = sequences * length;
    notes_.push_back({Note::Level::warning, place,
                      fmt::format("not set: a micro-batch has no limit, and {} sequences of up to {} tokens are one: {} tokens",
                                  sequences, length, tokens)});
    if (r.part.backend == Backend::archon)
      return pages(r, FactValue(tokens), derived(std::string(kWholePages), Origin::Rule::whole_pages));
    set(r.name + ".tokens_per_micro_batch", fmt::format("{}", round_up(tokens, 256)),
        derived("mb_spec.max_tokens_per_mb is not set: all sequences of a micro-batch are as long as they get"));
  }
  /// Images of the samples, where AReaL's own reader of the data set says how large they are. All of a rank's are on the device
  /// while a phase runs: the payload of the call (areal/infra/rpc/guard/engine_blueprint.py), and what each of the phase's
  /// micro-batches joins of it (areal/engine/fsdp_engine.py: _prepare_multimodal_forward_inputs, MicroBatchList.to).
  void images(const BuiltRole& r) {
    const auto* set_of = root_.at("train_dataset.path");
    const auto* type = root_.at("train_dataset.type");
    if (set_of == nullptr || type == nullptr) return;
    const SampleImages found = images_of_sample(set_of->text, type->text);
    const std::int64_t batch = rank_batch(m_, r) * found.images;
    if (batch <= 0) return;
    const bool trains = r.name == "actor" || r.name == "trainer";
    const std::int64_t phase = trains ? rank_sequences(m_, root_, r) * found.images : batch;
    const std::string why = fmt::format("images of {}: {}", set_of->text, found.by);
    const auto put = [&](std::string_view knob, std::int64_t n) {
      Origin origin = derived(why);
      origin.place = set_of->origin.place;
      set(fmt::format("{}.vision.{}", r.name, knob), fmt::format("{}", n), std::move(origin));
    };
    put("images", std::min(phase, kImageLimit.most));
    set(r.name + ".vision.fill", "true", derived("a micro-batch is as many samples as its tokens hold, an image each"));
    put("held", std::min(batch + phase, kHeldImageLimit.most));
    if (trains && flag(r.path + ".use_lora"))
      set(r.name + ".vision.train", "none", derived("peft freezes all but the adapters (areal/engine/fsdp_engine.py)"));
    put("height", found.height);
    put("width", found.width);
    if (!trains) return;
    Place place = set_of->origin.place;
    place.path = "train_dataset.path";
    notes_.push_back(
        {Note::Level::warning, place,
         fmt::format("one image of {} x {} pixels a sample is taken ({}), and a micro-batch as full of images as its "
                     "tokens allow",
                     found.width, found.height, found.by)});
  }
  /// 0: the file does not say.
  std::int64_t longest_sequence() const {
    const auto said = [&](std::string_view key) {
      std::int64_t tokens = 0;  // a text that is no number is refused where the settings are read; the last setting counts
      for (const auto& s : out_.settings)
        if (s.key == key) std::from_chars(s.text.data(), s.text.data() + s.text.size(), tokens);
      return std::clamp<std::int64_t>(tokens, 0, std::int64_t{1} << 30);
    };
    return said("prompt_tokens") + said("response_tokens");
  }
  /// mb_spec.n_mbs is a least number.
  void more_micro_batches(const BuiltRole& r) {
    const std::string key = fmt::format("roles.{}.micro_batch.min_micro_batches", r.name);
    const std::int64_t least = whole(key, 1);
    const std::int64_t budget = whole(fmt::format("roles.{}.micro_batch.tokens_per_micro_batch", r.name));
    const std::int64_t tokens = rank_sequences(m_, root_, r) * longest_sequence();
    if (least <= 1 || (budget > 0 && ceil_div(tokens, budget) >= least)) return;
    set(r.name + ".micro_batches", fmt::format("{}", least), fact(key)->origin);
  }
  /// SFT and DPO compute log-probs with the same chunks as PPO (areal/trainer/sft/lm_engine.py, areal/trainer/dpo/dpo_engine.py);
  /// a reward model gives values (areal/trainer/rw/rw_engine.py).
  void loss(const BuiltRole& r) {
    if (m_.kind == "reward_model")
      return set(r.name + ".head", "reward_pairs", derived("a reward model's loss is that of pairs"));
    set(r.name + ".head", "areal_compiled", derived("AReaL's loss is that of its log-probs"));
  }

  void server(const BuiltRole& r) {
    const bool sglang = r.part.backend == Backend::sglang;
    const auto put = [&](std::string_view name, std::string_view knob, const auto& text) {
      const Fact* f = fact(fmt::format("roles.{}.{}", r.name, name));
      if (f != nullptr) set(fmt::format("{}.{}", r.name, knob), text(f->value), f->origin);
    };
    set(r.name + ".engine", std::string(spelling(r.part.backend)), r.allocation);
    put("model", "model", as_text);
    const Fact* model = fact(fmt::format("roles.{}.model", r.name));
    if (const Fact* actor = fact("roles.actor.model"); actor != nullptr && (model == nullptr || as_text(model->value).empty()))
      set(r.name + ".model", as_text(actor->value), actor->origin);
    put("memory_fraction", sglang ? "mem_fraction_static" : "gpu_memory_utilization", as_text);
    put("max_running_requests", "max_running_requests", [](const FactValue& v) { return v.is_null() ? "auto" : v.plain(); });
    put("max_model_len", "max_model_len", as_text);
    put("concurrency_sequences", "concurrency", as_text);
    put("dtype", "weights", weights);
    put("kv_dtype", "kv", [](const FactValue& v) {
      return v.plain().starts_with("fp8") ? "fp8" : v.plain() == "auto" ? "" : v.plain();
    });
    put("enforce_eager", "enforce_eager", as_text);
    put("cuda_graph", "enforce_eager", [](const FactValue& v) { return v == FactValue(false) ? "true" : ""; });
    if (!r.beside.empty()) asleep_or_not(sglang);
    // With chunked prefill off one pass may hold as many tokens as a prefill batch.
    const std::int64_t chunk = whole(fmt::format("roles.{}.chunked_prefill", r.name), -1);
    put(chunk > 0 ? "chunked_prefill" : "max_prefill_tokens", "batched_tokens", as_text);
    for (auto& s : lora_of_server(m_, root_, r))
      set(fmt::format("{}.{}", r.name, s.knob), std::move(s.text), std::move(s.origin));
  }

  /// AReaL asks a server on shared GPUs to release its memory, and never switches on what lets it: SGLang's adapter of
  /// torch_memory_saver does nothing then (sglang/srt/utils/torch_memory_saver_adapter.py 0.5.10), vLLM's allocator has nothing
  /// tagged (vllm/device_allocator/cumem.py 0.19).
  void asleep_or_not(bool sglang) {
    const Fact* f = fact(sglang ? "roles.rollout.memory_saver" : "roles.rollout.sleep_mode");
    const std::string key = sglang ? "sglang.enable_memory_saver" : "vllm.enable_sleep_mode";
    if (f == nullptr || f->value == FactValue(true)) return;
    Origin origin = f->origin;
    origin.because = fmt::format("{} is not on: the server releases nothing", key);
    Place place = origin.place;
    place.path = key;
    set("rollout.sleep", "0", std::move(origin));
    notes_.push_back(
        {Note::Level::warning, place, "not on: the server keeps weights and KV cache while the trainers of the same GPUs run"});
  }

  const Meaning& m_;
  const compose::Node& root_;
  const Surroundings& around_;
  std::vector<Note>& notes_;
  NativeText out_;
};

}  // namespace

NativeText job_of(const Meaning& m, const compose::Node& root, const Surroundings& around, std::vector<Note>& notes) {
  return Translator(m, root, around, notes).run();
}

}  // namespace oomplan::areal
