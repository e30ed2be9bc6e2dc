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

/// Servers of another model beside those of the rollout: a judge, a teacher (Relax).
struct Served {
  std::string name;  ///< of the role
  RoleKind kind = RoleKind::reward;
  std::string model;              ///< the folder that is named
  std::string flag, engine_flag;  ///< what names it, and what counts the GPUs of an engine
  std::int64_t gpus = 1, engine_gpus = 1, stages = 1, groups = 1, experts = 1;
  bool shares = false;         ///< the trainer's GPUs, from `first_gpu` on
  std::int64_t first_gpu = 0;  ///< of the trainer's
  std::int64_t sleep = 0;      ///< SGLang's level
  std::vector<ServerFlag> flags;
  std::int64_t score_chunk = 0;  ///< SlimeText::score_chunk
};

struct SlimeMeaning {
  bool supervised = false;  ///< --loss-type sft_loss
  bool colocated = false;
  bool trains = true, serves = true;  ///< not with --debug-rollout-only, --debug-train-only
  bool reference = false, teacher = false, critic = false;
  std::string_view odd_critic = {};  ///< what of it is not described; "": it takes turns with the actor on its GPUs
  bool swaps = true;  ///< weights of reference and teacher take the place of the actor's; false: they are roles apart
  std::vector<Forward> apart;
  std::vector<Served> beside;  ///< servers of other models
  bool offload_train = false, offload_rollout = false;
  bool backs_up = false;  ///< servers that sleep have a copy of their weights on the host
  std::int64_t actor_gpus = 1, rollout_gpus = 0, used_gpus = 1;
  std::int64_t engine_gpus = 1, server_stages = 1, server_groups = 1, server_experts = 1;
  std::int64_t global_batch = 0;  ///< sequences of a training step; 0: not said
  megatron::Run run;              ///< Megatron's degrees
  std::vector<ToldFact> facts;

  /// "actor", of supervised training "trainer".
  std::string_view learner() const { return supervised ? "trainer" : "actor"; }
  /// Servers on a part of the trainer's GPUs.
  bool partial() const { return colocated && rollout_gpus < actor_gpus; }
  /// "rollout", of servers without a trainer "server".
  std::string_view servers() const { return trains ? "rollout" : "server"; }
};

/// The framework's and Megatron's rules are not checked here (rules.hpp). Sets in `text` what the framework sets in Megatron's
/// arguments.
SlimeMeaning meaning_of(SlimeText& text);

}  // namespace oomplan::slime
