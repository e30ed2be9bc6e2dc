#include "frontends/assemble.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <set>
#include <utility>

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
      : settings_(std::move(settings)), find_model_(find_model), facts_(facts), file_(file), d_(facts, file) {}

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
    return d_.take();
  }

 private:
  Job& job() { return d_.job(); }
  void add_roles(const std::vector<RoleAsked>& roles) {
    bool server = false, trainer = false, generator = false, others = false;
    for (const auto& asked : roles) {
      Role role;
      role.kind = asked.kind;
      role.name = asked.name.empty() ? std::string(spelling(asked.kind)) : asked.name;
      role.trainer.tokens_per_micro_batch = 0;
      role.server.kv.reset();
      job().origins[role.name] = {Origin::Kind::file, asked.place, {}, {}};
      job().roles.push_back(std::move(role));
      (asked.kind == RoleKind::server      ? server
       : asked.kind == RoleKind::trainer   ? trainer
       : asked.kind == RoleKind::generator ? generator
                                           : others) = true;
    }
    // a reference beside a trainer: preference data; servers beside one: predictions on the way
    if (trainer)
      others = std::any_of(roles.begin(), roles.end(), [](const RoleAsked& asked) {
        return asked.kind != RoleKind::trainer && asked.kind != RoleKind::reference && asked.kind != RoleKind::server &&
               asked.kind != RoleKind::rollout;
      });
    job().kind = server ? JobKind::serving : trainer || generator ? JobKind::sft : JobKind::rl;
    if (static_cast<int>(server) + static_cast<int>(trainer) + static_cast<int>(generator) + static_cast<int>(others) > 1)
      d_.problem({file_, 0, 0, {}}, "roles of different jobs",
                 {"server alone, generator alone, trainer alone or with ref, or rollout, actor, ref, critic, reward and teacher",
                  {},
                  {}});
    if (roles.empty())
      d_.problem({file_, 0, 0, {}}, "no role",
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
    if (at.knob == nullptr) return d_.problem(place, "an unknown key", at.problem);
    d_.is_written(s.key);
    Refusal refusal = at.knob->set(*at.knob, job(), job().role(at.role), s.text);
    if (refusal.refused()) return d_.problem(place, fmt::format("'{}'", s.text), std::move(refusal));
    job().origins[s.key] = {s.origin.kind, place, s.origin.because, s.origin.source, s.origin.rule};
  }

  void place_framework() {
    apply([](std::string_view key) { return key == "framework"; });
    const bool trains =
        std::any_of(job().roles.begin(), job().roles.end(), [](const Role& r) { return r.kind != RoleKind::server; });
    for (auto& role : job().roles) {
      Trainer& t = role.trainer;
      if (role.kind == RoleKind::generator && !d_.written("framework")) t.framework = Framework::torch;
      if (t.framework_version.empty()) t.framework_version = newest_version(t.framework);
      t.loop = training_loop(t.framework);
    }
    if (job().roles.empty() || !trains) return;
    const Trainer& t = job().roles[0].trainer;
    if (!d_.written("framework"))
      d_.record("framework", Origin::Kind::default_, "the framework of a job file that names none");
    else if (!t.framework_version.empty() && compare_versions(t.framework_version, oldest_version(t.framework)) < 0)
      d_.problem(job().origins["framework"].place, fmt::format("'{}'", get(job(), "framework")),
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
    d_.note({Note::Level::warning, job().origins["framework"].place,
             fmt::format("{} is not known; answered as {}, the newest that is", framework_text(t.framework, t.framework_version),
                         framework_text(t.framework, last))});
  }

  void apply_engines() {
    for (auto& role : job().roles) {
      const bool serves = role.kind == RoleKind::rollout || role.kind == RoleKind::server;
      const std::string key = key_of(role, "engine");
      const std::size_t before = d_.problems();
      if (serves) {  // what stands when the engine is missing or wrong: the one whose settings are used
        const auto vllm = key_of(role, "gpu_memory_utilization");
        const bool is_vllm = std::any_of(settings_.begin(), settings_.end(), [&](const Setting& s) { return s.key == vllm; });
        role.engine = is_vllm ? EngineKind::vllm : EngineKind::sglang;
      }
      if (role.kind == RoleKind::generator) role.engine = EngineKind::single;
      apply([&](std::string_view k) { return k == key; });
      if (d_.written(key) && role.serves() && role.server.version.empty()) take_version(role, key);
      if (d_.written(key) || d_.problems() > before) continue;
      if (serves)
        d_.missing(key, "sglang or vllm, with its version, such as sglang 0.5.10");
      else
        d_.record(key, Origin::Kind::default_, "the training engine of a job file that names none");
    }
  }

  void take_version(Role& role, const std::string& key) {
    role.server.version = server_version(role.trainer.framework, role.trainer.framework_version, role.engine, facts_);
    Place place = job().origins.contains(key) ? job().origins[key].place : Place{file_, 0, 0, key};
    d_.note({Note::Level::info, std::move(place),
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
        d_.record(key, Origin::Kind::default_, framework_text(t.framework, t.framework_version) + " default",
                  std::move(value.source));
      }
  }

  void like_the_actor() {
    const Role* actor = job().role("actor");
    if (actor == nullptr) return;
    for (const auto& role : job().roles) {
      if (role.kind != RoleKind::reference && role.kind != RoleKind::critic) continue;
      if (role.engine != actor->engine) continue;
      for (const auto knob : knobs_like_the_actor()) {
        const std::string from = key_of(*actor, knob);
        if (!d_.written(from)) continue;
        d_.derive_like_the_actor(key_of(role, knob), get(job(), from));
      }
      if (role.model.empty())
        d_.derive(key_of(role, "model"), actor->model, std::string(kLikeTheActor), {}, Origin::Rule::like_the_actor);
    }
  }

  void derive_cluster() {
    const Cluster& c = job().cluster;
    if (c.gpus > 0 && c.gpus < 8) d_.derive("gpus_per_node", fmt::format("{}", c.gpus), "all GPUs on one machine");
    if (c.gpus >= 8 && !d_.written("gpus_per_node")) d_.record("gpus_per_node", Origin::Kind::default_, "machines of 8 GPUs");
  }

  /// A server's degree of tensor parallelism when it has no layout.
  std::int64_t default_tensor(const Role& role) const {
    const std::string_view name = row_of(role.trainer.framework).tensor_fact;
    return role.serves() && !name.empty() && d_.job().kind == JobKind::rl ? d_.fact(role.trainer, name) : 1;
  }
  void fill_layout(Role& role, std::int64_t gpus, std::string because) {
    const std::int64_t tensor = std::min(default_tensor(role), gpus);
    Layout layout;
    layout.tensor = tensor;
    layout.data = gpus / tensor;
    if (role.kind == RoleKind::generator) std::swap(layout.data, layout.pipeline);  // device_map="auto"
    if (layout.world() == gpus) d_.derive(key_of(role, "layout"), letters(layout), std::move(because));
  }
  /// Layouts that nobody wrote: the only role without one takes the GPUs that are left; a role beside another takes its GPUs.
  void derive_layouts() {
    std::vector<Role*> open;
    std::int64_t left = job().cluster.gpus;
    for (auto& role : job().roles) {
      if (!role.beside.empty()) continue;
      if (!job().origins.contains(key_of(role, "layout")) && !d_.written(key_of(role, "layout")))
        open.push_back(&role);
      else
        left -= role.layout().world();
    }
    if (open.size() == 1 && left > 0) {
      fill_layout(*open[0], left, "all GPUs that are left");
    } else if (job().cluster.gpus > 0) {
      for (const Role* role : open)
        d_.missing(key_of(*role, "layout"), "letters with degrees, such as d4 or d2t4",
                   left > 0 ? "how the GPUs are shared out is not written" : "no GPU is left for it");
    }
    for (auto& role : job().roles) {
      const std::string key = key_of(role, "layout");
      if (role.beside.empty() || d_.written(key) || job().origins.contains(key)) continue;
      const Role* on = anchor(job(), role);
      if (on == nullptr || on == &role) continue;
      if (on->serves() == role.serves())
        d_.derive(key, letters(on->layout()), fmt::format("like {}", on->name));
      else
        fill_layout(role, on->layout().world(), fmt::format("all GPUs of {}", on->name));
    }
  }

  /// Megatron with --bf16 and what follows from it.
  void derive_megatron(const Role& role) {
    constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kSettings{{{"kernels", "transformer_engine"},
                                                                                      {"precision.storage", "bf16"},
                                                                                      {"precision.compute", "bf16"},
                                                                                      {"precision.reduce", "fp32"}}};
    for (const auto& [knob, text] : kSettings)
      d_.derive(key_of(role, knob), std::string(text), "Megatron runs so",
                "NVIDIA/Megatron-LM megatron/training/arguments.py, 0.16.1");
  }

  void derive_settings() {
    for (auto& role : job().roles) {
      const Trainer& t = role.trainer;
      if (role.serves()) continue;
      const FrameworkRow& row = row_of(t.framework);
      if (row.derive_budget != nullptr) row.derive_budget(d_, role);
      if (t.sequences_per_micro_batch > 0 && t.sequence_tokens > 0)
        d_.derive(key_of(role, "tokens_per_micro_batch"), fmt::format("{}", t.sequences_per_micro_batch * t.sequence_tokens),
                  "sequences times their length");
      if (role.engine == EngineKind::megatron)
        derive_megatron(role);
      else if (row.derive_role != nullptr)
        row.derive_role(d_, role);
    }
    derive_update();
  }
  void derive_update() {
    Role *rollout = job().role("rollout"), *actor = job().role("actor");
    if (rollout != nullptr && actor != nullptr) {
      const auto update = row_of(actor->trainer.framework).derive_update;
      if (update != nullptr) update(d_, *rollout, *actor);
    } else if (!d_.written("sync.by")) {
      job().sync = {};
    }
  }

  void find_models() {
    std::map<std::string, std::shared_ptr<const Architecture>> found;
    for (auto& role : job().roles) {
      if (role.model.empty()) {
        if (!std::exchange(model_asked_, true)) d_.missing("model", "a model's name, hub id, directory or config.json");
        continue;
      }
      auto [it, fresh] = found.emplace(role.model, nullptr);
      if (fresh) it->second = find(role, role.model, "model");
      role.architecture = it->second;
      if (role.serves() && !role.server.draft_model.empty())
        role.server.draft.architecture = find(role, role.server.draft_model, "draft_model");
      if (!role.serves() && !role.trainer.reference_model.empty())
        role.trainer.other.architecture = find(role, role.trainer.reference_model, "reference_model");
      if (role.architecture == nullptr) continue;
      leave_sdpa(role);
      if (!role.serves()) fill_positions(role);
      const auto derive_model = row_of(role.trainer.framework).derive_model;
      if (derive_model != nullptr) derive_model(d_, role);
    }
  }
  /// From sequences to tokens, where nothing but the model bounds a sequence.
  void fill_positions(Role& role) {
    const std::string key = key_of(role, "tokens_per_micro_batch");
    const auto origin = job().origins.find(key);
    if (origin == job().origins.end() || origin->second.rule != Origin::Rule::longest_of_model) return;
    const std::int64_t longest = std::max<std::int64_t>(1, role.architecture->max_positions);
    if (job().prompt_tokens == 0) job().prompt_tokens = longest;
    Trainer& t = role.trainer;
    t.tokens_per_micro_batch = round_up(std::min(t.tokens_per_micro_batch, kTokenLimit.most / longest) * longest, 256);
  }
  /// What transformers does when no attention was asked for and the model's code has no SDPA.
  void leave_sdpa(const Role& role) {
    const FamilyCode* code = role.serves() ? nullptr : find_family_code(role.architecture->family);
    if (code != nullptr && code->no_sdpa && role.trainer.kernels == Kernels::hf_sdpa)
      d_.derive(key_of(role, "kernels"), "hf_eager", fmt::format("transformers has no SDPA of '{}'", code->family),
                "transformers/modeling_utils.py");
  }
  std::shared_ptr<const Architecture> find(const Role& role, const std::string& name, std::string_view knob) {
    try {
      return find_model_(name);
    } catch (const InputError& e) {
      const std::string own = key_of(role, knob);
      const auto it = job().origins.find(job().origins.contains(own) ? own : "model");
      for (auto p : e.problems) {
        if (p.place.file.empty() && it != job().origins.end()) p.place = it->second.place;
        d_.problem(std::move(p));
      }
      return nullptr;
    }
  }

  std::vector<Setting> settings_;
  const FindModel& find_model_;
  const Facts& facts_;
  const std::string& file_;
  std::set<std::size_t> done_;
  bool model_asked_ = false;
  Derivation d_;
};

}  // namespace

AssembledJob assemble(const std::vector<RoleAsked>& roles, std::vector<Setting> settings, const FindModel& find_model,
                      const Facts& facts, const std::string& file) {
  return Assembler(std::move(settings), find_model, facts, file).run(roles);
}

}  // namespace oomplan
