#include "frontends/assemble.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>

#include <fmt/format.h>
#include <oomplan/units/bytes.hpp>

#include "catalog/architecture.hpp"
#include "catalog/facts.hpp"
#include "frontends/defaults.hpp"
#include "frontends/framework.hpp"
#include "job/follow.hpp"
#include "job/kernel_sets.hpp"
#include "job/knobs.hpp"
#include "job/limits.hpp"
#include "job/model_makers.hpp"
#include "job/names.hpp"
#include "job/placement.hpp"
#include "job/training_loop.hpp"
#include "layers/families.hpp"
#include "layout/letters.hpp"

namespace oomplan {
namespace {

class Assembler {
 public:
  Assembler(std::vector<Setting> settings, const FindModel& find_model, const Facts& facts, const std::string& file)
      : settings_(std::move(settings)), find_model_(find_model), facts_(facts), file_(file) {}

  AssembledJob run(const std::vector<RoleAsked>& roles) {
    add_roles(roles);
    place_framework();
    apply([](std::string_view key) { return key == "model"; });
    apply([](std::string_view key) { return key.ends_with(".model"); });
    apply_engines();
    apply([](std::string_view key) { return key == "gpus" || key.ends_with(".beside"); });
    take_defaults();
    apply([](std::string_view) { return true; });
    like_the_actor();
    derive_cluster();
    derive_layouts();
    derive_settings();
    find_models();
    order_passes(job());
    return std::move(out_);
  }

 private:
  Job& job() { return out_.job; }
  bool written(const std::string& key) const { return written_.contains(key); }
  /// What the job says of the actor and not of this role, which is like it.
  bool taken_over(const std::string& key) const { return taken_over_.contains(key); }
  static std::string key_of(const Role& role, std::string_view knob) { return fmt::format("{}.{}", role.name, knob); }

  void problem(Place place, std::string found, Refusal refusal) {
    out_.problems.push_back(
        {std::move(place), std::move(found), std::move(refusal.expected), std::move(refusal.nearest), std::move(refusal.why)});
  }
  void missing(const std::string& key, std::string expected, std::string why = {}) {
    Place place{file_, 0, 0, key};
    const auto role = job().origins.find(key.substr(0, key.find('.')));
    if (role != job().origins.end() && key.find('.') != std::string::npos) {
      place = role->second.place;
      place.path = key;
    }
    problem(place, "nothing", {std::move(expected), {}, std::move(why)});
  }

  void add_roles(const std::vector<RoleAsked>& roles) {
    bool server = false, trainer = false, others = false;
    for (const auto& asked : roles) {
      Role role;
      role.kind = asked.kind;
      role.name = spelling(asked.kind);
      role.trainer.tokens_per_micro_batch = 0;
      role.server.kv.reset();
      job().origins[role.name] = {Origin::Kind::file, asked.place, {}, {}};
      job().roles.push_back(std::move(role));
      (asked.kind == RoleKind::server ? server : asked.kind == RoleKind::trainer ? trainer : others) = true;
    }
    // a reference beside a trainer: preference data
    if (trainer)
      others = std::any_of(roles.begin(), roles.end(), [](const RoleAsked& asked) {
        return asked.kind != RoleKind::trainer && asked.kind != RoleKind::reference && asked.kind != RoleKind::server;
      });
    job().kind = server ? JobKind::serving : trainer ? JobKind::sft : JobKind::rl;
    if (static_cast<int>(server) + static_cast<int>(trainer) + static_cast<int>(others) > 1)
      problem({file_, 0, 0, {}}, "roles of different jobs",
              {"server alone, trainer alone or with ref, or rollout, actor, ref, critic, reward and teacher", {}, {}});
    if (roles.empty())
      problem({file_, 0, 0, {}}, "no role",
              {"one of " + list_of(spellings<RoleKind>()) + ", each a key with its settings", {}, {}});
  }

  /// The setting that holds of each key: the last one.
  void apply(const std::function<bool(std::string_view)>& which) {
    for (std::size_t i = 0; i < settings_.size(); ++i) {
      const Setting& s = settings_[i];
      if (done_.contains(i) || !which(s.key)) continue;
      done_.insert(i);
      apply_one(s);
    }
  }
  void apply_one(const Setting& s) {
    const KnobAt at = find_knob(job(), s.key);
    Place place = s.origin.place;
    place.path = s.key;
    if (at.knob == nullptr) return problem(place, "an unknown key", at.problem);
    written_.insert(s.key);
    Refusal refusal = at.knob->set(*at.knob, job(), job().role(at.role), s.text);
    if (refusal.refused()) return problem(place, fmt::format("'{}'", s.text), std::move(refusal));
    job().origins[s.key] = {s.origin.kind, place, s.origin.because, s.origin.source};
  }

  void place_framework() {
    apply([](std::string_view key) { return key == "framework"; });
    const bool trains =
        std::any_of(job().roles.begin(), job().roles.end(), [](const Role& r) { return r.kind != RoleKind::server; });
    for (auto& role : job().roles) {
      Trainer& t = role.trainer;
      if (t.framework_version.empty()) t.framework_version = newest_version(t.framework);
      t.loop = training_loop(t.framework);
    }
    if (job().roles.empty() || !trains) return;
    const Trainer& t = job().roles[0].trainer;
    if (!written("framework"))
      record("framework", Origin::Kind::default_, "the framework of a job file that names none");
    else if (!t.framework_version.empty() && compare_versions(t.framework_version, oldest_version(t.framework)) < 0)
      problem(job().origins["framework"].place, fmt::format("'{}'", get(job(), "framework")),
              {fmt::format("{} or later", framework_text(t.framework, oldest_version(t.framework))),
               {},
               "the defaults of older versions are not known"});
    else
      note_unknown_release(t);
  }

  /// A release after the last that was read is answered as that one.
  void note_unknown_release(const Trainer& t) {
    const std::string_view last = last_known_version(t.framework);
    if (last.empty() || compare_versions(t.framework_version, last) <= 0 ||
        t.framework_version.starts_with(fmt::format("{}.", last)))
      return;
    out_.notes.push_back({Note::Level::warning, job().origins["framework"].place,
                          fmt::format("{} is not known; answered as {}, the newest that is",
                                      framework_text(t.framework, t.framework_version), framework_text(t.framework, last))});
  }

  void apply_engines() {
    for (auto& role : job().roles) {
      const bool serves = role.kind == RoleKind::rollout || role.kind == RoleKind::server;
      const std::string key = key_of(role, "engine");
      const std::size_t before = out_.problems.size();
      if (serves) {  // what stands when the engine is missing or wrong: the one whose settings are used
        const auto vllm = key_of(role, "gpu_memory_utilization");
        const bool is_vllm = std::any_of(settings_.begin(), settings_.end(), [&](const Setting& s) { return s.key == vllm; });
        role.engine = is_vllm ? EngineKind::vllm : EngineKind::sglang;
      }
      apply([&](std::string_view k) { return k == key; });
      if (written(key) && role.serves() && role.server.version.empty()) take_version(role, key);
      if (written(key) || out_.problems.size() > before) continue;
      if (serves)
        missing(key, "sglang or vllm, with its version, such as sglang 0.5.10");
      else
        record(key, Origin::Kind::default_, "the training engine of a job file that names none");
    }
  }

  void take_version(Role& role, const std::string& key) {
    role.server.version = server_version(role.trainer.framework, role.trainer.framework_version, role.engine, facts_);
    Place place = job().origins.contains(key) ? job().origins[key].place : Place{file_, 0, 0, key};
    out_.notes.push_back({Note::Level::info, std::move(place),
                          fmt::format("{} without a version is taken as {}", spelling(role.engine), role.server.version)});
  }

  void take_defaults() {
    for (const auto& row : default_rows())
      for (auto& role : job().roles) {
        if (!applies(row, job(), role)) continue;
        const std::string key = key_of(role, row.key);
        const KnobAt at = find_knob(job(), key);
        if (at.knob == nullptr) continue;  // an optimizer's row on a role without one
        const Trainer& t = role.trainer;
        DefaultValue value = value_of(row, t.framework_version, at.knob->type, facts_);
        if (at.knob->set(*at.knob, job(), &role, value.text).refused()) throw Defect("a default is refused: " + key);
        record(key, Origin::Kind::default_, framework_text(t.framework, t.framework_version) + " default",
               std::move(value.source));
      }
  }

  void record(const std::string& key, Origin::Kind kind, std::string because, std::string source = {}) {
    job().origins[key] = {kind, {file_, 0, 0, key}, std::move(because), std::move(source)};
  }

  /// Sets a value that nobody wrote.
  void derive(const std::string& key, const std::string& text, std::string because, std::string source = {}) {
    if (written(key)) return;
    const KnobAt at = find_knob(job(), key);
    if (at.knob == nullptr) return;
    if (at.knob->get(job(), job().role(at.role)) == text && job().origins.contains(key)) return;
    if (at.knob->set(*at.knob, job(), job().role(at.role), text).refused()) return;
    record(key, Origin::Kind::derived, std::move(because), std::move(source));
  }

  void like_the_actor() {
    const Role* actor = job().role("actor");
    if (actor == nullptr) return;
    for (const auto& role : job().roles) {
      if (role.kind != RoleKind::reference && role.kind != RoleKind::critic) continue;
      if (role.engine != actor->engine) continue;
      for (const auto knob : knobs_like_the_actor()) {
        const std::string from = key_of(*actor, knob);
        if (!written(from)) continue;
        derive(key_of(role, knob), get(job(), from), std::string(kLikeTheActor));
        if (!written(key_of(role, knob))) taken_over_.insert(key_of(role, knob));
      }
      if (role.model.empty()) derive(key_of(role, "model"), actor->model, std::string(kLikeTheActor));
    }
  }

  void derive_cluster() {
    const Cluster& c = job().cluster;
    if (c.gpus > 0 && c.gpus < 8) derive("gpus_per_node", fmt::format("{}", c.gpus), "all GPUs on one machine");
    if (c.gpus >= 8 && !written("gpus_per_node")) record("gpus_per_node", Origin::Kind::default_, "machines of 8 GPUs");
  }

  std::int64_t fact(const Trainer& t, std::string_view fact_name) const {
    return static_cast<std::int64_t>(facts_.find(spelling(t.framework), fact_name, {t.framework_version, {}, {}}).value);
  }
  /// A server's degree of tensor parallelism when it has no layout.
  std::int64_t default_tensor(const Role& role) const {
    const bool verl = role.serves() && role.trainer.framework == Framework::verl && out_.job.kind == JobKind::rl;
    return verl ? fact(role.trainer, "tensor_model_parallel_size") : 1;
  }
  void fill_layout(Role& role, std::int64_t gpus, std::string because) {
    const std::int64_t tensor = std::min(default_tensor(role), gpus);
    Layout layout;
    layout.tensor = tensor;
    layout.data = gpus / tensor;
    if (layout.world() == gpus) derive(key_of(role, "layout"), letters(layout), std::move(because));
  }
  /// Layouts that nobody wrote: the only role without one takes the GPUs that are left; a role beside another takes its GPUs.
  void derive_layouts() {
    std::vector<Role*> open;
    std::int64_t left = job().cluster.gpus;
    for (auto& role : job().roles) {
      if (!role.beside.empty()) continue;
      if (!job().origins.contains(key_of(role, "layout")) && !written(key_of(role, "layout")))
        open.push_back(&role);
      else
        left -= role.layout().world();
    }
    if (open.size() == 1 && left > 0) {
      fill_layout(*open[0], left, "all GPUs that are left");
    } else if (job().cluster.gpus > 0) {
      for (const Role* role : open)
        missing(key_of(*role, "layout"), "letters with degrees, such as d4 or d2t4",
                left > 0 ? "how the GPUs are shared out is not written" : "no GPU is left for it");
    }
    for (auto& role : job().roles) {
      const std::string key = key_of(role, "layout");
      if (role.beside.empty() || written(key) || job().origins.contains(key)) continue;
      const Role* on = anchor(job(), role);
      if (on == nullptr || on == &role) continue;
      if (on->serves() == role.serves())
        derive(key, letters(on->layout()), fmt::format("like {}", on->name));
      else
        fill_layout(role, on->layout().world(), fmt::format("all GPUs of {}", on->name));
    }
  }

  /// FSDP casts to no format that is not written. Packed matrices are stored in the format that all compute in.
  void derive_policy(const Role& role) {
    const bool shards = shards_by_fsdp2(role.engine) || role.engine == EngineKind::fsdp1;
    if (!shards || role.trainer.lora.base.format != BaseFormat::full) return;
    constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kFormats{
        {{"precision.compute", "precision.cast_parameters"}, {"precision.reduce", "precision.cast_gradients"}}};
    for (const auto& [format, cast] : kFormats)
      if (!written(key_of(role, format)) && !taken_over(key_of(role, format)) && !taken_over(key_of(role, cast)))
        derive(key_of(role, cast), "false", "no format is written for FSDP's policy",
               "torch/distributed/fsdp/_fully_shard/_fsdp_api.py: MixedPrecisionPolicy");
  }

  /// What torchtitan sets where a recipe is silent.
  void derive_titan(const Role& role) {
    constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kSettings{{{"precision.storage", "fp32"},
                                                                                      {"precision.compute", "bf16"},
                                                                                      {"precision.reduce", "fp32"},
                                                                                      {"optimizer_form", "fused"},
                                                                                      {"head", "cross_entropy"},
                                                                                      {"wrap_embedding", "true"},
                                                                                      {"wrap_head", "true"},
                                                                                      {"wrap_norm", "true"},
                                                                                      {"reshard_last", "false"}}};
    for (const auto& [knob, text] : kSettings)
      derive(key_of(role, knob), std::string(text), "torchtitan's models run so",
             "pytorch/torchtitan torchtitan/config/job_config.py, torchtitan/models/llama3/infra/parallelize.py, 0.2.2");
  }

  /// What Archon sets whatever is configured; one format (dtype) is that of everything but the reductions.
  void derive_archon(const Role& role) {
    constexpr std::array<std::pair<std::string_view, std::string_view>, 7> kSettings{{{"kernels", "archon"},
                                                                                      {"precision.storage", "bf16"},
                                                                                      {"precision.reduce", "fp32"},
                                                                                      {"wrap_embedding", "true"},
                                                                                      {"wrap_head", "true"},
                                                                                      {"wrap_norm", "true"},
                                                                                      {"reshard_last", "false"}}};
    for (const auto& [knob, text] : kSettings)
      derive(key_of(role, knob), std::string(text), "Archon's models run so",
             "areal/experimental/models/archon/qwen3/infra/parallelize.py, areal/experimental/engine/archon_engine.py, 1.0.4");
    derive(key_of(role, "precision.compute"), std::string(name(role.trainer.storage)),
           "Archon computes in the format of its parameters", "areal/experimental/engine/archon_engine.py, 1.0.4");
  }

  /// What LitGPT's fine-tuning scripts set.
  void derive_litgpt(const Role& role) {
    derive(key_of(role, "head"), "litgpt", "LitGPT's loss", "Lightning-AI/litgpt litgpt/utils.py");
    constexpr std::string_view kScripts = "Lightning-AI/litgpt litgpt/finetune/full.py, litgpt/finetune/lora.py";
    derive(key_of(role, "lora.format"), "storage", "adapters are made in the format of the model", std::string(kScripts));
    if (role.trainer.lora.base.format != BaseFormat::full)
      derive(key_of(role, "lora.bitsandbytes"), "0.42.0", "LitGPT supports this release alone", std::string(kScripts));
    if (role.engine != EngineKind::fsdp1) return;
    derive(key_of(role, "recompute"), "full", "LitGPT checkpoints its layers under FSDP", std::string(kScripts));
    derive(key_of(role, "gradient_sync_every_micro_batch"), "false", "fabric.no_backward_sync", std::string(kScripts));
    derive(key_of(role, "use_orig_params"), "true", "Fabric asks for it", "lightning/fabric/strategies/fsdp.py");
    if (role.trainer.lora.rank > 0)
      derive(key_of(role, "lora.own_units"), "false", "FSDPStrategy wraps blocks alone", std::string(kScripts));
  }

  /// What torchtune's recipes set.
  void derive_torchtune(const Role& role) {
    derive(key_of(role, "head"), "torchtune_chunked", "torchtune's configurations name this loss",
           "pytorch/torchtune recipes/configs, 0.4.0");
    derive(key_of(role, "lora.format"), "storage", "adapters are made in the format of the model",
           "pytorch/torchtune torchtune/modules/peft/lora.py, 0.4.0");
  }

  /// Megatron with --bf16 and what follows from it.
  void derive_megatron(const Role& role) {
    constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kSettings{{{"kernels", "transformer_engine"},
                                                                                      {"precision.storage", "bf16"},
                                                                                      {"precision.compute", "bf16"},
                                                                                      {"precision.reduce", "fp32"}}};
    for (const auto& [knob, text] : kSettings)
      derive(key_of(role, knob), std::string(text), "Megatron runs so",
             "NVIDIA/Megatron-LM megatron/training/arguments.py, 0.16.1");
  }

  /// What AReaL's and verl's engines and the makers of their models set.
  void derive_rl_megatron(const Role& role) {
    const Trainer& t = role.trainer;
    const bool verl = t.framework == Framework::verl;
    if (role.serves() || role.engine != EngineKind::megatron || (!verl && t.framework != Framework::areal)) return;
    const bool bridge = t.megatron.maker == ModelMaker::megatron_bridge;
    MadeModel made = made_model(t.megatron.maker, role.architecture->family).value_or(MadeModel{});
    // AReaL's own defaults of megatron.moe_*, which reach mbridge's configuration from 2.0.0 on (areal/engine/megatron_engine.py)
    if (!verl && !bridge && compare_versions(t.framework_version, "2.0.0") >= 0) {
      made.shared_overlap = false;
      made.router = DType::fp32;
    }
    const auto flag = [](bool on) { return std::string(on ? "true" : "false"); };
    const auto set = [&](std::string_view knob, const std::string& text) {
      derive(key_of(role, knob), text, verl ? "verl's models are made so" : "AReaL's models are made so",
             bridge ? "megatron/bridge/models" : "mbridge/core/llm_bridge.py");
    };
    if (verl) {
      set("wrap_with_ddp", "false");  // forward_only
      set("recompute", "none");       // override_transformer_config.recompute_granularity
      set("precision.storage", "bf16");
    }
    set("sequence_parallel", flag(t.layout.tensor > 1));
    set("gradient_accumulation_fusion", flag(made.fused_gradients && t.lora.rank == 0));
    set("deallocate_outputs", flag(made.deallocates));
    set("rotary_fusion", flag(made.rotary_fusion));
    set("permute_fusion", flag(made.permute_fusion));
    set("activation_fusion", flag(made.activation_fusion));
    set("shared_expert_overlap", flag(made.shared_overlap));
    set("router_aux_loss", flag(made.balances));
    set("router_dtype", std::string(spelling(made.router)));
  }

  void derive_settings() {
    for (auto& role : job().roles) {
      Trainer& t = role.trainer;
      if (role.serves()) continue;
      const std::string budget = key_of(role, "tokens_per_micro_batch");
      if (t.framework == Framework::verl && !written(budget) && t.layout.context > 1 &&
          job().origins[budget].kind == Origin::Kind::default_)
        derive(budget, fmt::format("{}", t.tokens_per_micro_batch * t.layout.context),
               "verl's budget counts the tokens of one GPU: times the Ulysses degree", "verl/workers/engine/utils.py");
      if (t.sequences_per_micro_batch > 0 && t.sequence_tokens > 0)
        derive(budget, fmt::format("{}", t.sequences_per_micro_batch * t.sequence_tokens), "sequences times their length");
      if (role.engine == EngineKind::megatron) {
        derive_megatron(role);
        continue;
      }
      if (role.engine == EngineKind::archon) derive_archon(role);
      const bool titan = t.framework == Framework::torch && role.engine == EngineKind::fsdp2 && t.kernels == Kernels::torchtitan;
      if (titan) derive_titan(role);
      if (t.framework == Framework::torch) {
        if (!titan) {
          if (!taken_over(key_of(role, "precision.compute")))
            derive(key_of(role, "precision.compute"), std::string(name(t.storage)),
                   "FSDP2 computes in the stored format unless told");
          if (!taken_over(key_of(role, "precision.reduce")))
            derive(key_of(role, "precision.reduce"), std::string(name(t.compute)),
                   "FSDP2 reduces in the computed format unless told");
          derive_policy(role);
        }
        if (!titan && !written(key_of(role, "precision.storage")) && !taken_over(key_of(role, "precision.storage")))
          missing(key_of(role, "precision.storage"), "fp32 or bf16", "PyTorch alone has no default for it");
        const bool litgpt = t.kernels == Kernels::litgpt || t.kernels == Kernels::litgpt_0_4_5;
        if (litgpt) derive_litgpt(role);
        const bool torchtune = t.kernels == Kernels::torchtune || t.kernels == Kernels::torchtune_packed;
        if (torchtune) derive_torchtune(role);
        if (of_transformers(t.kernels) && t.lora.rank > 0 && t.vision.images == 0)
          derive(key_of(role, "lora.targets"), "default", "peft's own targets for the model's type",
                 "huggingface/peft src/peft/utils/constants.py, 0.21.2");
        if (!titan && !litgpt && !torchtune && role.kind == RoleKind::trainer)
          derive(key_of(role, "head"), "hf_loss", "transformers' own loss");
      }
      if (t.framework == Framework::agilerl && !role.beside.empty())
        derive(key_of(role, "in_process"), "true", "AgileRL trains and generates in one process",
               "agilerl/algorithms/core/base.py");
      if (t.framework == Framework::verl && !role.beside.empty())
        derive(key_of(role, "in_process"), anchor_trains(role) ? "true" : "false", "verl's workers share one process",
               "verl/workers/engine_workers.py");
    }
    derive_agilerl_server();
    derive_sync();
  }
  /// agilerl/utils/llm_utils.py: build_vllm_llm_init_kwargs, resolve_vllm_max_num_batched_tokens, 2.8.
  void derive_agilerl_server() {
    const Role *rollout = job().role("rollout"), *actor = job().role("actor");
    if (rollout == nullptr || actor == nullptr || actor->trainer.framework != Framework::agilerl) return;
    constexpr std::string_view kWhy = "AgileRL's rule";
    constexpr std::string_view kWhere = "agilerl/utils/llm_utils.py";
    const auto set = [&](std::string_view knob, std::int64_t value) {
      if (value > 0) derive(key_of(*rollout, knob), fmt::format("{}", value), std::string(kWhy), std::string(kWhere));
    };
    set("max_model_len", job().prompt_tokens + job().response_tokens);
    const std::int64_t longest = rollout->server.max_model_len, most = rollout->server.max_running;
    set("batched_tokens", std::min(most * longest, std::max(longest, most * 8192)));
    set("lora.rank", std::max<std::int64_t>(16, actor->trainer.lora.rank));
  }
  bool anchor_trains(const Role& role) const {
    const Role* other = out_.job.role(role.beside);
    return other != nullptr && !other->serves();
  }
  void derive_sync() {
    const Role* rollout = job().role("rollout");
    const Role* actor = job().role("actor");
    if (rollout == nullptr || actor == nullptr) {
      if (!written("sync.by")) job().sync = {};
      return;
    }
    const Trainer& t = actor->trainer;
    if (t.framework == Framework::torch) return derive("sync.by", "none", "PyTorch alone brings no weight update");
    if (t.framework == Framework::agilerl)
      return derive("sync.by", "none", "AgileRL hands its adapters over in files", "agilerl/algorithms/core/base.py");
    const bool areal = t.framework == Framework::areal;
    const bool shared = anchor(job(), *rollout) == anchor(job(), *actor);
    const std::string source = areal ? "areal/trainer/rl_trainer.py" : "verl/workers/engine_workers.py";
    if (!shared)
      derive("sync.by", "nccl", "servers on GPUs of their own get new weights over NCCL", source);
    else if (areal)
      derive("sync.by", "disk", "AReaL on shared GPUs hands weights over on disk", source);
    else
      derive("sync.by", "ipc", "verl on shared GPUs hands weights over by CUDA IPC", source);
    const Fact& bucket = facts_.find(spelling(t.framework), areal ? "weight_chunked_mem_mib" : "update_weights_bucket_mib",
                                     {t.framework_version, {}, {}});
    derive("sync.bucket", fmt::format("{}MiB", static_cast<std::int64_t>(bucket.value)),
           framework_text(t.framework, t.framework_version) + " default", bucket.source);
    if (areal && shared)
      derive(key_of(*actor, "offload"), "[parameters, optimizer]", "AReaL offloads an actor that shares its GPUs with servers",
             "areal/trainer/rl_trainer.py");
  }

  void find_models() {
    std::map<std::string, std::shared_ptr<const Architecture>> found;
    for (auto& role : job().roles) {
      if (role.model.empty()) {
        if (!std::exchange(model_asked_, true)) missing("model", "a model's name, hub id, directory or config.json");
        continue;
      }
      auto [it, fresh] = found.emplace(role.model, nullptr);
      if (fresh) it->second = find(role, role.model, "model");
      role.architecture = it->second;
      if (role.serves() && !role.server.draft_model.empty())
        role.server.draft.architecture = find(role, role.server.draft_model, "draft_model");
      if (role.architecture != nullptr) leave_sdpa(role);
      if (role.architecture != nullptr) loop_over_experts(role);
      if (role.architecture != nullptr) derive_rl_megatron(role);
      if (role.architecture == nullptr || role.serves()) continue;
      fill_positions(role);
      if (role.engine == EngineKind::archon) {
        pad_to_pages(role);
        continue;  // a tied embedding is in both units
      }
      if (!role.architecture->tied) continue;
      if (role.trainer.framework != Framework::torch && role.trainer.framework != Framework::agilerl) {
        derive(key_of(role, "wrap_embedding"), "false", "tied embeddings belong to the root unit");
        derive(key_of(role, "wrap_head"), "false", "tied embeddings belong to the root unit");
      }
    }
  }
  /// From sequences to tokens, where nothing but the model bounds a sequence.
  void fill_positions(Role& role) {
    const std::string key = key_of(role, "tokens_per_micro_batch");
    const auto origin = job().origins.find(key);
    if (origin == job().origins.end() || origin->second.because != kLongestOfModel) return;
    const std::int64_t longest = std::max<std::int64_t>(1, role.architecture->max_positions);
    if (job().prompt_tokens == 0) job().prompt_tokens = longest;
    Trainer& t = role.trainer;
    t.tokens_per_micro_batch = round_up(std::min(t.tokens_per_micro_batch, kTokenLimit.most / longest) * longest, 256);
    if (role.engine == EngineKind::archon) origin->second.because = kWholePages;
  }
  /// areal/experimental/engine/archon_engine.py, _prepare_mb_list, 0.5.2 to 2.0.0: a multiple of the tokens of a page and of
  /// 2 t c, behind the multiple of 256 that every engine has (areal/utils/data.py, pad_mb_list).
  void pad_to_pages(Role& role) {
    Trainer& t = role.trainer;
    const auto origin = job().origins.find(key_of(role, "tokens_per_micro_batch"));
    if (origin == job().origins.end() || origin->second.because != kWholePages) return;
    const std::int64_t page = std::max<std::int64_t>(1, 2 * kMiB / role.architecture->hidden / bytes_of(1, t.storage));
    const std::int64_t multiple = std::lcm(page, 2 * t.layout.tensor * t.layout.context);
    t.tokens_per_micro_batch = round_up(round_up(t.tokens_per_micro_batch, 256), multiple);
  }
  /// What transformers does when no attention was asked for and the model's code has no SDPA.
  void leave_sdpa(const Role& role) {
    const FamilyCode* code = role.serves() ? nullptr : find_family_code(role.architecture->family);
    if (code != nullptr && code->no_sdpa && role.trainer.kernels == Kernels::hf_sdpa)
      derive(key_of(role, "kernels"), "hf_eager", fmt::format("transformers has no SDPA of '{}'", code->family),
             "transformers/modeling_utils.py");
  }
  /// A release of an RL framework that ran on transformers 4 has its loop over experts.
  void loop_over_experts(const Role& role) {
    const Framework framework = role.trainer.framework;
    if (role.serves() || role.engine == EngineKind::megatron || role.engine == EngineKind::archon) return;
    if (framework != Framework::areal && framework != Framework::verl) return;
    const auto routed = [](const LayerRun& r) { return r.layer.feed_forward.kind == FeedForwardKind::moe; };
    const auto& runs = role.architecture->runs;
    if (std::none_of(runs.begin(), runs.end(), routed) || fact(role.trainer, "experts_fused") != 0) return;
    derive(key_of(role, "transformers"), "4.57.1", "this release of the framework runs on transformers 4");
  }
  std::shared_ptr<const Architecture> find(const Role& role, const std::string& name, std::string_view knob) {
    try {
      return find_model_(name);
    } catch (const InputError& e) {
      const std::string own = key_of(role, knob);
      const auto it = job().origins.find(job().origins.contains(own) ? own : "model");
      for (auto p : e.problems) {
        if (p.place.file.empty() && it != job().origins.end()) p.place = it->second.place;
        out_.problems.push_back(std::move(p));
      }
      return nullptr;
    }
  }

  std::vector<Setting> settings_;
  const FindModel& find_model_;
  const Facts& facts_;
  const std::string& file_;
  std::set<std::size_t> done_;
  std::set<std::string> written_, taken_over_;
  bool model_asked_ = false;
  AssembledJob out_;
};

}  // namespace

AssembledJob assemble(const std::vector<RoleAsked>& roles, std::vector<Setting> settings, const FindModel& find_model,
                      const Facts& facts, const std::string& file) {
  return Assembler(std::move(settings), find_model, facts, file).run(roles);
}

}  // namespace oomplan
