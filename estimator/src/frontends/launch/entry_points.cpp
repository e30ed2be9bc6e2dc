#include "frontends/launch/entry_points.hpp"

#include <algorithm>
#include <array>

#include "frontends/launch/paths.hpp"

namespace oomplan::launch {
namespace {

using Kind = Entry::Kind;

/// The first row that fits counts. Sources: the READMEs and examples of each project.
constexpr std::array kRows{
    // verl-project/verl 1dda039b, examples/**/*.sh
    EntryPoint{Kind::module, "verl.trainer.main_ppo*", "", "verl", "its RL trainer"},
    EntryPoint{Kind::module, "verl.trainer.sft_trainer*", "", "verl", "its SFT trainer"},
    EntryPoint{Kind::module, "verl.trainer.fsdp_sft_trainer", "", "verl", "its SFT trainer"},
    EntryPoint{Kind::module, "verl.trainer.main_generation*", "", "verl", "its generation", Reader::none, false},
    EntryPoint{Kind::module, "verl.trainer.main_eval", "", "verl", "its evaluation", Reader::none, false},
    EntryPoint{Kind::module, "verl.experimental.*", "", "verl", "an experimental trainer of it"},
    EntryPoint{Kind::module, "verl.*", "", "verl", "a tool of it", Reader::none, false},
    EntryPoint{Kind::module, "recipe.*", "actor_rollout_ref.", "verl", "a recipe for it"},
    EntryPoint{Kind::script, "*", "actor_rollout_ref.", "verl", "a script for it"},
    EntryPoint{Kind::module, "*", "actor_rollout_ref.", "verl", "a module for it"},
    // redai-infra/Relax, scripts/training
    EntryPoint{Kind::module, "relax.entrypoints.train*", "", "Relax", "its trainer"},
    EntryPoint{Kind::script, "relax/entrypoints/train.py", "", "Relax", "its trainer"},
    // THUDM/slime 624b824a, scripts/*.sh
    EntryPoint{Kind::script, "train.py", "--rollout-batch-size", "slime", "its trainer"},
    EntryPoint{Kind::script, "train_async.py", "--rollout-batch-size", "slime", "its asynchronous trainer"},
    EntryPoint{Kind::script, "train.py", "--hf-checkpoint", "slime", "its trainer"},
    EntryPoint{Kind::script, "train_async.py", "--hf-checkpoint", "slime", "its asynchronous trainer"},
    EntryPoint{Kind::script, "train.py", "--update-weight-buffer-size", "slime", "its trainer"},
    // areal-project/AReaL v0.3.4 to v1.0.4: docs/tutorial/quickstart.md; later releases start the script itself
    EntryPoint{Kind::module, "areal.launcher.*", "", "AReaL", "its launcher", Reader::areal_launcher},
    EntryPoint{Kind::module, "areal.infra.launcher.*", "", "AReaL", "its launcher", Reader::areal_launcher},
    EntryPoint{Kind::module, "areal.launcher", "", "AReaL", "its launcher", Reader::areal_launcher},
    // NVIDIA/Megatron-LM core_v0.16.1, examples; the reader says which of the scripts it reads
    EntryPoint{Kind::script, "pretrain_*", "", "Megatron-LM", "a script of it", Reader::megatron},
    // vllm-project/vllm and sgl-project/sglang, as docs/serve.md has them
    EntryPoint{Kind::program, "vllm", "serve", "vLLM", "its server", Reader::server, false},
    EntryPoint{Kind::module, "vllm.entrypoints.openai.api_server", "", "vLLM", "its server", Reader::server, false},
    EntryPoint{Kind::module, "sglang.launch_server", "", "SGLang", "its server", Reader::server, false},
    EntryPoint{Kind::program, "sglang", "serve", "SGLang", "its server", Reader::server, false},
    // oumi-ai/oumi d8ed0777, README.md
    EntryPoint{Kind::program, "oumi", "train", "Oumi", "its trainer"},
    EntryPoint{Kind::module, "oumi", "train", "Oumi", "its trainer"},
    EntryPoint{Kind::module, "oumi.train", "", "Oumi", "its trainer"},
    EntryPoint{Kind::program, "oumi", "launch", "Oumi", "its launcher"},
    EntryPoint{Kind::program, "oumi", "infer", "Oumi", "its inference", Reader::none, false},
    EntryPoint{Kind::program, "oumi", "evaluate", "Oumi", "its evaluation", Reader::none, false},
    // others, by the commands of their READMEs
    EntryPoint{Kind::program, "trl", "sft", "TRL", "its SFT"},
    EntryPoint{Kind::program, "trl", "dpo", "TRL", "its DPO"},
    EntryPoint{Kind::program, "trl", "grpo", "TRL", "its GRPO"},
    EntryPoint{Kind::program, "trl", "vllm-serve", "TRL", "its server", Reader::none, false},
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
    EntryPoint{Kind::program, "trtllm-serve", "", "TensorRT-LLM", "its server", Reader::none, false},
    EntryPoint{Kind::program, "lmdeploy", "serve", "LMDeploy", "its server", Reader::none, false},
    EntryPoint{Kind::program, "text-generation-launcher", "", "TGI", "its server", Reader::none, false},
    EntryPoint{Kind::module, "sglang.*", "", "SGLang", "a tool of it", Reader::none, false},
    EntryPoint{Kind::module, "vllm.*", "", "vLLM", "a tool of it", Reader::none, false},
    // AReaL's examples: any script with a --config; whether the file is AReaL's is seen when it is read
    EntryPoint{Kind::script, "*", "--config", "AReaL", "an entry script of it", Reader::areal_script},
};

bool fits(std::string_view pattern, std::string_view name) {
  if (!pattern.ends_with('*')) return pattern == name;
  pattern.remove_suffix(1);
  return name.starts_with(pattern);
}

}  // namespace

const EntryPoint* entry_point(const Entry& entry, const std::string& first_argument, const std::function<bool(std::string_view)>& has) {
  const std::string last = last_part(entry.name);
  for (const EntryPoint& row : kRows) {
    if (row.kind != entry.kind) continue;
    const bool by_path = row.kind == Kind::script && row.name.find('/') != std::string_view::npos;
    const bool named = by_path ? entry.name.ends_with(row.name) : fits(row.name, row.kind == Kind::module ? entry.name : last);
    if (!named) continue;
    const bool first = row.kind == Kind::program || (row.kind == Kind::module && row.name == "oumi");
    if (!row.argument.empty() && !(first ? first_argument == row.argument : has(row.argument))) continue;
    return &row;
  }
  return nullptr;
}

}  // namespace oomplan::launch
