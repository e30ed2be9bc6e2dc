// Parts of what verl's configuration means: engines of a role, servers.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "frontends/telling.hpp"
#include "frontends/verl/tree.hpp"

namespace oomplan::verl {

inline constexpr std::string_view kArr = "actor_rollout_ref";
/// A fact of trainers whose step has other prompts than data.train_batch_size says.
inline constexpr const char* kStepPrompts = "job.step_prompts";

/// A role that trains or computes log-probs, and where its settings stand.
struct RoleAt {
  std::string name;   ///< "actor"
  std::string path;   ///< "actor_rollout_ref.actor"; "" of SFT, whose keys stand at the top
  std::string model;  ///< "actor_rollout_ref.model"
  std::string block;  ///< of the engine: "actor_rollout_ref.actor.fsdp_config"
  bool megatron = false;
  bool forward_only = false;
  std::int64_t gpus = 0;
  /// Whose degrees Megatron has: its groups are made once a process, by the engine that is built first. "": its own.
  std::string degrees = {};
  const std::string& block_of_degrees() const { return degrees.empty() ? block : degrees; }
};

/// "fsdp1", "fsdp2", "megatron", or verl's own word for another.
std::string engine_named(std::string_view strategy);
/// Degree of Ulysses, or of Megatron's context parallelism.
std::int64_t context_of(const Telling&, const RoleAt&);
void tell_engine(Telling&, const RoleAt&, Release);
/// Servers of one model: the rollout's, or a teacher's.
struct ServerAt {
  std::string fact;   ///< "roles.rollout."
  std::string path;   ///< "actor_rollout_ref.rollout"
  std::string model;  ///< the key of the model's path
  std::int64_t gpus = 0;
  std::string_view gpus_by, placement, placed_by;
};
void tell_server(Telling&, Release, const ServerAt&);
/// Of one replica, whose settings stand at `path`.
std::int64_t gpus_of_a_server(const Telling&, const std::string& path);
/// Where the settings of the teachers stand, in their order. The one of the defaults counts only where it is alone
/// (verl/workers/config/distillation.py, 0.8 to 0.10: _resolve_teacher_models).
std::vector<std::string> paths_of_teachers(const Telling&);
bool distills(const Telling&);
/// Of the pool of all teachers.
std::int64_t gpus_of_teachers(const Telling&);
/// A reward model, and where its settings stand.
struct RewardAt {
  std::string path;      ///< "reward.reward_model"; up to 0.7.0 "reward_model"
  std::string model;     ///< the key of the model's path
  std::string function;  ///< the key of the file with a function of the user's own, which asks the model itself
  bool served = false;   ///< by vLLM or SGLang; otherwise it is one of the workers
};
RewardAt reward_at(const Telling&, Release);
bool rewards(const Telling&, Release);
/// Of its own pool; 0: it has none.
std::int64_t gpus_of_rewards(const Telling&, Release);
void tell_reward(Telling&, Release, std::int64_t gpus_of_trainer);
/// A micro-batch: by tokens where it is dynamic, else by sequences of the longest length.
struct BatchAt {
  std::string fact;                                          ///< "roles.actor.micro_batch"
  std::string dynamic, tokens, sequences, global_sequences;  ///< keys
  std::int64_t context = 1, data = 1, longest = 0;
  std::string_view group;  ///< "ulysses size"
};
void tell_batch(Telling&, const BatchAt&);

}  // namespace oomplan::verl
