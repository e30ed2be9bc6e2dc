#include "frontends/verl/launched.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "frontends/launch/quote.hpp"

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

}  // namespace

std::span<const launch::EntryPoint> entry_points() { return kPrograms; }

Source take(Handing& handing) {
  const launch::Launch& launch = handing.launch();
  const auto& words = handing.words();
  std::vector<std::string> line;
  // SFT under torchrun: the world is torchrun's
  for (std::size_t i = 0; i < std::min(handing.first_argument(), words.size()); ++i)
    for (const std::string_view flag : {"--nnodes", "--nproc-per-node", "--nproc_per_node"}) {
      const std::string name = flag == "--nnodes" ? "--nnodes" : "--nproc-per-node";
      if (words[i].starts_with(fmt::format("{}=", flag)))
        line.push_back(fmt::format("{}={}", name, words[i].substr(flag.size() + 1)));
      if (words[i] == flag && i + 1 < words.size()) line.push_back(fmt::format("{}={}", name, words[i + 1]));
    }
  line.insert(line.end(), {"-m", module_named(launch.entry.name)});
  line.insert(line.end(), words.begin() + static_cast<std::ptrdiff_t>(std::min(handing.first_argument(), words.size())),
              words.end());
  Source out = handing.asked();
  out.text = launch::command_text(line);
  out.dialect = "verl";
  return out;
}

}  // namespace oomplan::verl
