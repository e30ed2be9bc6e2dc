// How long a conversation of several turns gets.
//
// AReaL's client generates at most max_new_tokens more, and never beyond gconfig.max_tokens and rollout.agent.engine_max_tokens
// in all (areal-project/AReaL areal/experimental/openai/client.py: max_total_tokens, engine_max_tokens; 1.0.3 to 2.0.0). Each
// turn begins with all that went before (areal/workflow/multi_turn.py, examples/multi_turn_math/gsm8k_rl_mt.py).
#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "frontends/areal/meaning.hpp"

namespace oomplan::areal {

struct Turns {
  std::string path;  ///< of the key that says it: "agent_run_args.max_turns"
  const compose::Node* node = nullptr;
  std::int64_t number = 0;  ///< 0: the key says that there are several, not how many
};
/// What an example's own class says of turns: max_turns, or max_steps of an environment that an agent acts in.
std::optional<Turns> turns_of(const compose::Node& root);

/// Tokens of the longest conversation: the prompt and an answer of every turn, as far as the limits allow. What is said to the
/// model between two turns is not counted where the number of turns is the limit. 0: no conversation, or the file says no length.
std::int64_t longest_conversation(const Meaning&, const compose::Node& root);

}  // namespace oomplan::areal
