// Parts of what verl's configuration means: engines of a role, servers.
#pragma once
#include <string>
#include <string_view>

#include "frontends/telling.hpp"
#include "frontends/verl/tree.hpp"

namespace oomplan::verl {

inline constexpr std::string_view kArr = "actor_rollout_ref";

/// A role that trains or computes log-probs, and where its settings stand.
struct RoleAt {
  std::string name;   ///< "actor"
  std::string path;   ///< "actor_rollout_ref.actor"; "" of SFT, whose keys stand at the top
  std::string model;  ///< "actor_rollout_ref.model"
  std::string block;  ///< of the engine: "actor_rollout_ref.actor.fsdp_config"
  bool megatron = false;
  bool forward_only = false;
  std::int64_t gpus = 0;
};

/// "fsdp1", "fsdp2", "megatron", or verl's own word for another.
std::string engine_named(std::string_view strategy);
/// Degree of Ulysses, or of Megatron's context parallelism.
std::int64_t context_of(const Telling&, const RoleAt&);
void tell_engine(Telling&, const RoleAt&, Release);
void tell_rollout(Telling&, Release, std::int64_t gpus, bool separated);
/// A micro-batch: by tokens where it is dynamic, else by sequences of the longest length.
struct BatchAt {
  std::string fact;                                          ///< "roles.actor.micro_batch"
  std::string dynamic, tokens, sequences, global_sequences;  ///< keys
  std::int64_t context = 1, data = 1, longest = 0;
  std::string_view group;  ///< "ulysses size"
};
void tell_batch(Telling&, const BatchAt&);

}  // namespace oomplan::verl
