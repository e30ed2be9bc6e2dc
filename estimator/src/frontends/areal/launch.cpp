#include "frontends/areal/launch.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "frontends/areal/releases.hpp"

namespace oomplan::areal {
namespace {

/// The launchers set AREAL_SPMD_MODE (areal/launcher/local.py, 0.5.2 on), and then PPOTrainer builds actor, reference and critic
/// in the process of each GPU. Without it the controller starts, which knows no scheduler of no type (areal/experimental/
/// trainer/rl.py: _init_scheduler): a file without one is the launchers'.
constexpr std::string_view kControllers = "0.5.2";

bool launched(const Teller& t) { return !t.since(kControllers) || !t.has("scheduler.type"); }

/// What AReaL 0.4.0 and later check, and from when on whose loader it is. A controller's loader is the only one
/// (areal/controller/train_controller.py: data_parallel_world_size), and shares nothing.
struct LoaderRule {
  std::string_view first, last;
  bool launchers_alone;
};
constexpr std::array<LoaderRule, 2> kEvenBatches{{{"0.4.0", "0.5.1", false}, {"0.5.2", "1.0.2", true}}};

/// Entry scripts that divide the batch themselves and drop the rest.
constexpr std::array<std::string_view, 2> kOwnLoaders{"examples/countdown/", "recipe/AEnt/"};

bool holds(const LoaderRule& rule, const Teller& t) {
  const Release release = t.out().release;
  if (release < release_named(rule.first) || release_named(rule.last) < release) return false;
  return !rule.launchers_alone || launched(t);
}

}  // namespace

std::string shares_process(const Teller& t) {
  if (t.since("1.0.3") || !launched(t)) return {};
  if (!t.since("0.5.0")) return "before 0.5.0 roles live in the actor's process";
  if (!t.since(kControllers)) return "PPOTrainer builds all roles in one process of each GPU (areal/experimental/trainer/rl.py)";
  return "scheduler.type is null: the launchers run one process for each GPU, which builds all roles (AREAL_SPMD_MODE)";
}

std::optional<Problem> uneven_batch(const Teller& t, std::string_view file) {
  const auto by = [&](const LoaderRule& rule) { return holds(rule, t); };
  if (std::none_of(kEvenBatches.begin(), kEvenBatches.end(), by)) return std::nullopt;
  const auto divides_itself = [&](std::string_view folder) { return file.find(folder) != std::string_view::npos; };
  if (std::any_of(kOwnLoaders.begin(), kOwnLoaders.end(), divides_itself)) return std::nullopt;
  const auto& roles = t.out().roles;
  const auto trained =
      std::find_if(roles.begin(), roles.end(), [](const BuiltRole& r) { return r.name == "actor" || r.name == "trainer"; });
  const compose::Node* batch = t.at("train_dataset.batch_size");
  if (trained == roles.end() || batch == nullptr || batch->kind != compose::Node::Kind::integer) return std::nullopt;
  const std::int64_t ranks = trained->part.layout.data;
  if (ranks <= 1 || batch->integer <= 0 || batch->integer % ranks == 0) return std::nullopt;
  Place place = batch->origin.place;
  place.path = "train_dataset.batch_size";
  return Problem{std::move(place), fmt::format("{} prompts for {} data-parallel ranks", batch->integer, ranks),
                 fmt::format("a multiple of {}, such as {}", ranks, (batch->integer / ranks + 1) * ranks), {},
                 fmt::format("the loaders of AReaL {} take equal parts (areal/utils/dataloader.py: create_dataloader)",
                             name_of(t.out().release))};
}

}  // namespace oomplan::areal
