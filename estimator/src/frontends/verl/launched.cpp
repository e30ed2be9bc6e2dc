#include "frontends/verl/launched.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "frontends/launch/quote.hpp"
#include "frontends/verl/tree.hpp"
#include "units/enums.hpp"

namespace oomplan::verl {
namespace {

using launch::EntryPoint;
using EntryKind = launch::Entry::Kind;

/// verl-project/verl 0.3.0 to 1dda039b: modules that compose a trainer's configuration.
constexpr std::array kPrograms{
    EntryPoint{EntryKind::module, "verl.trainer.main_ppo*", "", "verl", "its RL trainer", "verl"},
    EntryPoint{EntryKind::module, "verl.trainer.sft_trainer*", "", "verl", "its SFT trainer", "verl"},
    EntryPoint{EntryKind::module, "verl.trainer.fsdp_sft_trainer", "", "verl", "its SFT trainer", "verl"},
    EntryPoint{EntryKind::module, "verl.trainer.main_generation_server", "", "verl", "its generation", "verl", false},
    EntryPoint{EntryKind::module, "verl.experimental.fully_async_policy.fully_async_main", "", "verl", "its asynchronous trainer",
               "verl"},
    EntryPoint{EntryKind::module, "verl.experimental.one_step_off_policy.main_ppo", "", "verl", "its one-step-off trainer",
               "verl"},
    EntryPoint{EntryKind::module, "recipe.fully_async_policy.fully_async_main", "", "verl", "its asynchronous trainer", "verl"},
    EntryPoint{EntryKind::module, "recipe.one_step_off_policy.main_ppo", "", "verl", "its one-step-off trainer", "verl"},
    EntryPoint{EntryKind::module, "recipe.dapo.main_dapo", "", "verl", "DAPO", "verl"},
    EntryPoint{EntryKind::module, "recipe.entropy.main_entropy", "", "verl", "a recipe of it", "verl"},
    EntryPoint{EntryKind::module, "recipe.flowrl.main_flowrl", "", "verl", "a recipe of it", "verl"},
    EntryPoint{EntryKind::module, "recipe.r1_ascend.main_ppo", "", "verl", "a recipe of it", "verl"},
    EntryPoint{EntryKind::module, "recipe.transfer_queue.main_ppo", "", "verl", "a recipe of it", "verl"},
};

/// A script of the repository is the module of its path.
std::string module_named(std::string name) {
  if (name.ends_with(".py")) name.resize(name.size() - 3);
  std::replace(name.begin(), name.end(), '/', '.');
  return name;
}

/// A module that no release has composes nothing that is known, unless its configuration is named.
void refuse_unknown(const Handing& handing, const std::string& module) {
  if (!releases_with(module).empty()) return;
  for (const std::string_view flag : {"--config-name", "-cn", "--config-path", "-cp"})
    if (handing.has(flag)) return;
  std::vector<std::string> names;
  for (const EntryPoint& row : kPrograms) names.emplace_back(row.name.substr(0, row.name.find('*')));
  throw InputError(Problem{handing.place(), fmt::format("'{}'", module), "a module of verl, or --config-name",
                           nearest(module, names), "no release of verl has it", ProblemKind::refused_by_framework});
}

/// argparse takes an unambiguous beginning of a flag for the flag, and stops at one that it does not know.
std::string torchrun_flag(std::string word, const Handing& handing) {
  std::replace(word.begin(), word.end(), '_', '-');
  constexpr std::string_view kNodes = "--nnodes", kProcesses = "--nproc-per-node";
  if (word.starts_with("--nn") && kNodes.starts_with(word)) return std::string(kNodes);
  if (word.starts_with("--np") && kProcesses.starts_with(word)) return std::string(kProcesses);
  if (word.starts_with("--nnode") || word.starts_with("--nproc"))
    handing.fail(fmt::format("'{}'", word), fmt::format("{} or {}", kNodes, kProcesses), "torchrun has no such flag");
  return {};
}

}  // namespace

std::span<const launch::EntryPoint> entry_points() { return kPrograms; }

Source take(Handing& handing) {
  const launch::Launch& launch = handing.launch();
  const auto& words = handing.words();
  std::vector<std::string> line;
  // SFT under torchrun: the world is torchrun's
  for (std::size_t i = 0; i < std::min(handing.first_argument(), words.size()); ++i) {
    const auto equals = words[i].find('=');
    const std::string name = torchrun_flag(words[i].substr(0, equals), handing);
    if (name.empty()) continue;
    if (equals != std::string::npos)
      line.push_back(fmt::format("{}={}", name, words[i].substr(equals + 1)));
    else if (i + 1 < words.size())
      line.push_back(fmt::format("{}={}", name, words[i + 1]));
  }
  if (launch.entry.kind == EntryKind::module && launch.entry.name.ends_with(".py"))
    handing.fail(fmt::format("-m {}", launch.entry.name), fmt::format("-m {}", module_named(launch.entry.name)),
                 "python's -m takes the name of a module, not of a file");
  refuse_unknown(handing, module_named(launch.entry.name));
  line.insert(line.end(), {"-m", module_named(launch.entry.name)});
  line.insert(line.end(), words.begin() + static_cast<std::ptrdiff_t>(std::min(handing.first_argument(), words.size())),
              words.end());
  Source out = handing.asked();
  out.text = launch::command_text(line);
  out.dialect = "verl";
  return out;
}

}  // namespace oomplan::verl
