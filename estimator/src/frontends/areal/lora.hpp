// What AReaL's keys of LoRA mean for a job: the adapters of a role that trains, and the room that the servers make for them.
//
// Sources: areal-project/AReaL areal/engine/fsdp_engine.py `_apply_peft_wrapper` (0.4.1 to 2.0.0: no dropout,
// autocast_adapter_dtype False, so that adapters are stored like the frozen parameters; enable_input_require_grads),
// areal/api/cli_args.py SGLangConfig and vLLMConfig, areal/trainer/rl_trainer.py `_init_rollout` (1.0.0 and later hand the first
// adapter to the servers).
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "frontends/areal/meaning.hpp"

namespace oomplan::areal {

struct LoraSetting {
  std::string knob, text;  ///< of the role: "lora.rank", "16"
  Origin origin;
};

/// Empty when the role trains all its parameters. `root`: as for meaning_of().
std::vector<LoraSetting> lora_of_trainer(const Meaning&, const compose::Node& root, const BuiltRole&);
/// Empty when the servers take no adapters.
std::vector<LoraSetting> lora_of_server(const Meaning&, const compose::Node& root, const BuiltRole&);

/// A key of LoRA that cannot be followed, and why: AReaL refuses it itself, or it is not supported yet.
std::optional<Problem> lora_problem(const compose::Node& root, const BuiltRole&);

}  // namespace oomplan::areal
