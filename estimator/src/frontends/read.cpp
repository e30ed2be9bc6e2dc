// read() and default_job() of oomplan.hpp.
#include <algorithm>
#include <tuple>

#include <fmt/format.h>
#include <oomplan/oomplan.hpp>

#include "catalog/catalog.hpp"
#include "catalog/parameters.hpp"
#include "catalog/text_alone.hpp"
#include "frontends/native.hpp"
#include "frontends/start.hpp"
#include "inference/adapter_slots.hpp"
#include "job/idle_settings.hpp"
#include "job/limits.hpp"
#include "job/validate.hpp"
#include "job/vision_pass.hpp"
#include "layout/letters.hpp"
#include "layout/rules.hpp"
#include "training/adapter_targets.hpp"
#include "units/enums.hpp"
#include "units/sizes.hpp"

namespace oomplan {

void add_beside(NativeText& text, const Source& source) {
  if (source.host_memory.empty()) return;
  text.settings.push_back({"host_memory",
                           source.host_memory,
                           {Origin::Kind::override_, {"command line", 0, 0, "--host-memory"}, source.host_memory, {}}});
}

void stop_at(std::vector<Problem> all) {
  if (all.empty()) return;
  std::stable_sort(all.begin(), all.end(), [](const Problem& a, const Problem& b) {
    const auto rank = [](const Problem& p) {
      return std::tuple(p.place.file == "command line", p.place.line == 0, p.place.line, p.place.column);
    };
    return rank(a) < rank(b);
  });
  const auto same = [](const Problem& a, const Problem& b) { return to_text(a) == to_text(b); };
  all.erase(std::unique(all.begin(), all.end(), same), all.end());
  throw InputError(std::move(all));
}

namespace {

/// A model that has the shape of a built-in one and a name of its own (models/aliases.json).
std::optional<ModelFound> of_the_same_name(const std::string& folder, const Catalog& catalog) {
  try {
    ModelFound found = catalog.model(folder);
    if (found.id.substr(found.id.rfind('/') + 1) == folder) return found;
  } catch (const InputError&) {
  }
  return std::nullopt;
}

/// A framework's file names models by folders of the cluster, which are not on this machine: then the folder's own name counts,
/// with the slash that some write as "__".
ModelFound find_by_folder(const std::string& name, const Catalog& catalog, std::vector<Note>& notes, const std::string& file) {
  try {
    return catalog.model(name);
  } catch (const InputError&) {
    std::string folder = name;
    while (folder.ends_with('/')) folder.pop_back();
    folder = folder.substr(folder.rfind('/') + 1);
    if (const auto gap = folder.find("__"); gap != std::string::npos) folder = folder.substr(gap + 2);
    if (name.find('/') == std::string::npos || folder.empty()) throw;
    std::optional<ModelFound> found;
    for (const auto& id : catalog.model_ids())
      if (!found && id.substr(id.rfind('/') + 1) == folder) found = catalog.model(id);
    if (!found) found = of_the_same_name(folder, catalog);
    if (!found) throw;
    notes.push_back({Note::Level::warning,
                     {file, 0, 0, "model"},
                     fmt::format("'{}' is not on this machine; taken as {} by its name", name, found->id)});
    return *found;
  }
}

/// What peft objects to in the targets of a role's adapters, at the place of the setting.
std::vector<Problem> problems_of_targets(const Job& job) {
  std::vector<Problem> out;
  for (const Role& role : job.roles) {
    if (role.serves() || role.architecture == nullptr) continue;
    for (Problem& p : target_problems(role.trainer, role.engine, *role.architecture)) {
      const std::string key = fmt::format("{}.{}", role.name, p.place.path);
      const auto origin = job.origins.find(key);
      p.place = origin == job.origins.end() ? Place{} : origin->second.place;
      p.place.path = key;
      out.push_back(std::move(p));
    }
  }
  return out;
}

/// The same of what a server's slots for adapters stand beside.
std::vector<Problem> problems_of_slots(const Job& job) {
  std::vector<Problem> out;
  for (const Role& role : job.roles) {
    if (!role.serves() || role.architecture == nullptr) continue;
    std::optional<Problem> p = slots_problem(*role.architecture, role.engine, role.server);
    if (!p) continue;
    const std::string key = role.name + ".lora.slots";
    const auto origin = job.origins.find(key);
    p->place = origin == job.origins.end() ? Place{} : origin->second.place;
    p->place.path = key;
    out.push_back(std::move(*p));
  }
  return out;
}

/// A trainer whose model has a tower, and no images for it.
std::optional<Note> note_of_idle_tower(const Role& role) {
  if (role.serves() || role.architecture == nullptr || role.architecture->tower.kind.empty() ||
      vision_pass(role.trainer, role.engine, *role.architecture).images > 0)
    return std::nullopt;
  const std::int64_t tower = count(*role.architecture).tower;
  return Note{Note::Level::info,
              {{}, 0, 0, role.name},
              fmt::format("no vision.images: text alone is trained. The tower of {} keeps its {:.2f} billion parameters on the "
                          "device ({} whole), and gets no activations, gradients or optimizer states",
                          role.model, static_cast<double>(tower) / 1e9, bytes_text(bytes_of(tower, role.trainer.storage)))};
}

/// What a trainer of a model's language model alone may hold besides, and is not counted.
std::optional<Note> note_of_tower(const Role& role, const Catalog& catalog) {
  if (role.serves() || !role.model.ends_with(kTextAlone)) return note_of_idle_tower(role);
  if (role.trainer.loop.says_loss) return std::nullopt;  // slime's has none
  const auto whole = catalog.model(std::string_view(role.model).substr(0, role.model.size() - kTextAlone.size()));
  const std::int64_t tower = count(*whole.architecture).tower;
  return Note{
      Note::Level::info,
      {{}, 0, 0, role.name},
      fmt::format("{} is the language model by itself. A class that loads the tower too keeps its {:.2f} billion parameters "
                  "on the device, trained or not ({} in 16 bits), and makes positions or masks for images: not counted",
                  role.model, static_cast<double>(tower) / 1e9, bytes_text(bytes_of(tower, DType::bf16)))};
}

/// `framework`: the text is a framework's own file, not ours. `model`: described by the text itself.
Reading finish(NativeText text, const std::string& file, const Catalog& catalog, bool framework = false,
               const std::shared_ptr<const Architecture>& model = nullptr) {
  std::vector<Note> notes;
  const FindModel find_model = [&](const std::string& name) {
    if (model != nullptr) return model;
    auto found = framework ? find_by_folder(name, catalog, notes, file) : catalog.model(name);
    if (!found.also.empty())
      notes.push_back({Note::Level::info,
                       {file, 0, 0, "model"},
                       fmt::format("'{}' is taken as {}; it could also mean {}", name, found.id, list_of(found.also))});
    return found.architecture;
  };
  AssembledJob made = assemble(text.roles, std::move(text.settings), find_model, catalog.facts(), file);
  for (auto& p : made.problems) text.problems.push_back(std::move(p));
  stop_at(std::move(text.problems));
  stop_at(problems(made.job, catalog, framework ? &notes : nullptr));
  stop_at(problems_of_targets(made.job));
  stop_at(problems_of_slots(made.job));
  for (auto& note : made.notes) notes.push_back(std::move(note));
  for (auto& note : remarks(made.job, catalog)) notes.push_back(std::move(note));
  for (const Role& role : made.job.roles)
    if (std::optional<Note> note = note_of_tower(role, catalog)) notes.push_back(std::move(*note));
  // a framework's own file has many settings that its other parts read
  if (std::optional<Note> note = framework ? std::nullopt : idle_note(made.job)) notes.push_back(std::move(*note));
  return {std::move(made.job), std::move(notes)};
}

}  // namespace

Reading reading_of_job_file(NativeText text, const std::string& file, const Catalog& catalog) {
  return finish(std::move(text), file, catalog);
}

Reading reading_of(NativeText text, const std::string& file, const Catalog& catalog) {
  return finish(std::move(text), file, catalog, true);
}

Reading reading_of(NativeText text, const std::string& file, const Catalog& catalog, std::shared_ptr<const Architecture> model) {
  return finish(std::move(text), file, catalog, true, model);
}

Reading default_job(std::string_view model, std::int64_t gpus, std::string_view gpu, const Catalog* given) {
  const Catalog& catalog = given == nullptr ? Catalog::builtin() : *given;
  const std::string file = "command line";
  if (!kGpuLimit.holds(gpus))
    throw InputError(
        {{file, 0, 0, "gpus"}, fmt::format("{}", gpus), fmt::format("{} to {} GPUs", kGpuLimit.least, kGpuLimit.most), {}, {}});
  const auto architecture = catalog.model(model).architecture;
  const Gpu& kind = catalog.gpu(gpu);
  const std::int64_t servers = gpus > 1 ? gpus / 2 : gpus, trainers = gpus > 1 ? gpus - servers : gpus;
  const std::int64_t tensor = servers > 0 ? server_tensor_degree(*architecture, kind, servers) : 1;
  const Origin asked{Origin::Kind::override_, {file, 0, 0, {}}, {}, {}};
  const Origin short_form{
      Origin::Kind::default_, {file, 0, 0, {}}, "the short form: GRPO with AReaL, prompts of 1k and responses of 8k tokens", {}};
  NativeText text;
  text.roles = {{RoleKind::rollout, {file, 0, 0, "rollout"}},
                {RoleKind::actor, {file, 0, 0, "actor"}},
                {RoleKind::reference, {file, 0, 0, "ref"}}};
  text.settings = {{"gpus", fmt::format("{} x {}", gpus, kind.name), asked},
                   {"model", std::string(model), asked},
                   {"prompt_tokens", "1k", short_form},
                   {"response_tokens", "8k", short_form},
                   {"sequences_per_step", "1k", short_form},
                   {"rollout.engine", "sglang 0.5.10", short_form},
                   {"rollout.layout", fmt::format("d{}t{}", servers / tensor, tensor), short_form},
                   {"rollout.mem_fraction_static", gpus > 1 ? "0.8" : "0.5", short_form},
                   {"rollout.concurrency", "256", short_form},
                   {"actor.layout", fmt::format("d{}", trainers), short_form},
                   {"actor.tokens_per_micro_batch", "16k", short_form},
                   {"actor.recompute", "full", short_form},
                   {"ref.beside", "actor", short_form}};
  if (gpus == 1) text.settings.push_back({"actor.beside", "rollout", short_form});
  return finish(std::move(text), file, catalog);
}

}  // namespace oomplan
