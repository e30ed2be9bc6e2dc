// Reward models: workers of FSDP or Megatron up to 0.6.1, servers from 0.7.0 on (verl/trainer/ppo/ray_trainer.py:
// use_reward_loop, True by default in 0.7.0 and gone in 0.7.1; verl/experimental/reward_loop/reward_model.py, 0.7.0 to 0.10).
#include "frontends/verl/meaning_parts.hpp"

namespace oomplan::verl {

RewardAt reward_at(const Telling& t, Release release) {
  if (release >= release_named("0.7.1"))
    return {"reward.reward_model", "reward.reward_model.model_path", "reward.custom_reward_function.path", true};
  return {"reward_model", "reward_model.model.path", "custom_reward_function.path", t.flag("reward_model.use_reward_loop")};
}

bool rewards(const Telling& t, Release release) { return t.flag(reward_at(t, release).path + ".enable"); }

std::int64_t gpus_of_rewards(const Telling& t, Release release) {
  const std::string path = reward_at(t, release).path;
  const bool own = rewards(t, release) && t.flag(path + ".enable_resource_pool");
  return own ? t.whole(path + ".n_gpus_per_node", 8) * t.whole(path + ".nnodes", 1) : 0;
}

void tell_reward(Telling& t, Release release, std::int64_t gpus_of_trainer) {
  const RewardAt at = reward_at(t, release);
  const std::int64_t own = gpus_of_rewards(t, release);
  const ServerAt server{"roles.reward.",
                        at.path + ".rollout",
                        at.model,
                        own > 0 ? own : gpus_of_trainer,
                        own > 0 ? "reward_model.nnodes x n_gpus_per_node" : "same GPUs as the actor",
                        own > 0 ? "own" : "shares:actor",
                        own > 0 ? "a pool of its own" : "separate server processes on the same GPUs"};
  if (!at.served) {
    t.take("roles.reward.engine", at.path + ".strategy");
    t.take("roles.reward.model", at.model);
    t.derived("roles.reward.gpus", server.gpus, server.gpus_by);
    return t.made("roles.reward.placement", server.placement, at.path + ".enable_resource_pool");
  }
  tell_server(t, release, server);
  // reward_loop.py: a function of the user's own asks the model, and one that generates must have such a function
  t.made("roles.reward.pooling", !t.has(at.function), at.function);
  if (t.knows(server.path + ".full_determinism")) t.take("roles.reward.full_determinism", server.path + ".full_determinism");
}

}  // namespace oomplan::verl
