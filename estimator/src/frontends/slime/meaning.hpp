// What a command of slime, or of its family, means, fact by fact, before any of it is estimated: which roles are built, on which
// GPUs, with which degrees and budgets. Keys and values are those of docs/slime.md ("roles.actor.layout.dp" = 4).
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "frontends/megatron/run.hpp"
#include "frontends/slime/read.hpp"
#include "frontends/telling.hpp"

namespace oomplan::slime {

/// A role that only computes log-probs, on GPUs of its own (Relax).
struct Forward {
  std::string name;  ///< "ref", "actor_fwd"
  std::int64_t gpus = 1;
  bool starts = true;       ///< or is only named
  std::int64_t tokens = 0;  ///< budget of a GPU
  megatron::Arguments arguments;
  megatron::Run run;
};

struct SlimeMeaning {
  bool supervised = false;  ///< --loss-type sft_loss
  bool colocated = false;
  bool trains = true, serves = true;  ///< not with --debug-rollout-only, --debug-train-only
  bool reference = false, teacher = false, critic = false;
  bool swaps = true;  ///< weights of reference and teacher take the place of the actor's; false: they are roles apart
  std::vector<Forward> apart;
  bool offload_train = false, offload_rollout = false;
  std::int64_t actor_gpus = 1, rollout_gpus = 0, used_gpus = 1;
  std::int64_t engine_gpus = 1, server_stages = 1, server_groups = 1, server_experts = 1;
  std::int64_t global_batch = 0;  ///< sequences of a training step; 0: not said
  megatron::Run run;              ///< Megatron's degrees
  std::vector<ToldFact> facts;

  /// "actor", of supervised training "trainer".
  std::string_view learner() const { return supervised ? "trainer" : "actor"; }
  /// "rollout", of servers without a trainer "server".
  std::string_view servers() const { return trains ? "rollout" : "server"; }
};

/// The framework's and Megatron's rules are not checked here (rules.hpp). Sets in `text` what the framework sets in Megatron's
/// arguments.
SlimeMeaning meaning_of(SlimeText& text);

}  // namespace oomplan::slime
