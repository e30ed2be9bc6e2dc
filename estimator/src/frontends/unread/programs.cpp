// Programs of frameworks that are known by name, and whose words are not read yet.
#include <algorithm>
#include <array>
#include <cctype>
#include <string>

#include "frontends/unread/unread.hpp"

namespace oomplan::unread {
namespace {

using launch::EntryPoint;
using Kind = launch::Entry::Kind;

/// Sources: the READMEs and examples of each project.
constexpr std::array kPrograms{
    // verl-project/verl 1dda039b, examples/**/*.sh
    EntryPoint{Kind::module, "verl.trainer.main_generation*", "", "verl", "its generation", "", false},
    EntryPoint{Kind::module, "verl.trainer.main_eval", "", "verl", "its evaluation", "", false},
    EntryPoint{Kind::module, "verl.experimental.*", "", "verl", "an experimental trainer of it"},
    EntryPoint{Kind::module, "verl.*", "", "verl", "a tool of it", "", false},
    EntryPoint{Kind::module, "recipe.*", "actor_rollout_ref.", "verl", "a recipe for it"},
    EntryPoint{Kind::script, "*", "actor_rollout_ref.", "verl", "a script for it"},
    EntryPoint{Kind::module, "*", "actor_rollout_ref.", "verl", "a module for it"},
    // oumi-ai/oumi d8ed0777, README.md
    EntryPoint{Kind::program, "oumi", "launch", "Oumi", "its launcher"},
    // others, by the commands of their READMEs
    EntryPoint{Kind::program, "trl", "vllm-serve", "TRL", "its server", "", false},
    EntryPoint{Kind::program, "llamafactory-cli", "train", "LLaMA-Factory", "its trainer"},
    EntryPoint{Kind::program, "axolotl", "train", "Axolotl", "its trainer"},
    EntryPoint{Kind::module, "axolotl.cli.train", "", "Axolotl", "its trainer"},
    EntryPoint{Kind::program, "tune", "run", "torchtune", "a recipe of it"},
    EntryPoint{Kind::module, "torchtitan.*", "", "TorchTitan", "its trainer"},
    EntryPoint{Kind::module, "openrlhf.cli.*", "", "OpenRLHF", "its trainer"},
    EntryPoint{Kind::program, "swift", "sft", "ms-swift", "its SFT"},
    EntryPoint{Kind::program, "swift", "rlhf", "ms-swift", "its RLHF"},
    EntryPoint{Kind::program, "megatron", "sft", "ms-swift", "its Megatron SFT"},
    EntryPoint{Kind::program, "xtuner", "train", "XTuner", "its trainer"},
    EntryPoint{Kind::program, "trtllm-serve", "", "TensorRT-LLM", "its server", "", false},
    EntryPoint{Kind::program, "lmdeploy", "serve", "LMDeploy", "its server", "", false},
    EntryPoint{Kind::program, "text-generation-launcher", "", "TGI", "its server", "", false},
    EntryPoint{Kind::module, "sglang.*", "", "SGLang", "a tool of it", "", false},
    EntryPoint{Kind::module, "vllm.*", "", "vLLM", "a tool of it", "", false},
};

}  // namespace

std::span<const EntryPoint> entry_points() { return kPrograms; }

bool is_framework(std::string_view name) {
  const auto lower = [](std::string_view text) {
    std::string out(text);
    std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return std::tolower(c); });
    return out;
  };
  return std::any_of(kPrograms.begin(), kPrograms.end(),
                     [&](const EntryPoint& row) { return lower(row.framework) == lower(name); });
}

}  // namespace oomplan::unread
