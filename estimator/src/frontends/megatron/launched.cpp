#include "frontends/megatron/launched.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "frontends/launch/paths.hpp"
#include "frontends/launch/quote.hpp"

namespace oomplan::megatron {
namespace {

using launch::EntryPoint;

/// NVIDIA/Megatron-LM core_v0.16.1, examples; read_command says which of the scripts it reads.
constexpr std::array kPrograms{
    EntryPoint{launch::Entry::Kind::script, "pretrain_*", "", "Megatron-LM", "a script of it", "megatron"}};

/// Where torchrun's options begin: behind the program, or behind -m torch.distributed.run.
std::size_t torchrun_options(const std::vector<std::string>& words) {
  const auto module = std::find(words.begin(), words.end(), "-m");
  if (launch::last_part(words[0]) == "torchrun" || module == words.end()) return 1;
  return static_cast<std::size_t>(module - words.begin()) + 2;
}

}  // namespace

std::span<const EntryPoint> entry_points() { return kPrograms; }

Source take(Handing& handing) {
  const launch::Launch& launch = handing.launch();
  Source out = handing.asked();
  std::vector<std::string> words = handing.variables({"WORLD_SIZE", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"});
  std::vector<std::string> command = handing.words();
  const bool torchrun = handing.has("--nproc-per-node");
  if (torchrun && !handing.has("--nnodes") && launch.nodes) {
    command.insert(command.begin() + static_cast<std::ptrdiff_t>(torchrun_options(command)),
                   {"--nnodes", fmt::format("{}", launch.nodes->value)});
  } else if (!torchrun && !handing.states_gpus() && launch.gpus_per_node && launch.environment.count("WORLD_SIZE") == 0) {
    out.overrides.push_back(fmt::format("gpus={}", launch.gpus_per_node->value * (launch.nodes ? launch.nodes->value : 1)));
  }
  words.insert(words.end(), command.begin(), command.end());
  out.text = launch::command_text(words);
  out.dialect = "megatron";
  return out;
}

}  // namespace oomplan::megatron
