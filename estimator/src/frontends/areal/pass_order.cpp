#include "frontends/areal/pass_order.hpp"

#include "catalog/facts.hpp"

namespace oomplan::areal {

// Values of the critic come first from 0.3.2 on. Then the actor's log-probs, then the reference's (examples/math/gsm8k_ppo.py
// 0.4.1; areal/experimental/trainer/rl.py 0.5.3; areal/trainer/rl_trainer.py 1.0.0 to 1.0.2); from 1.0.3 on it is the reference's
// first (areal/trainer/rl_trainer.py: train). Launchers wait for the servers before they start the trainers, and so does the
// trainer that starts servers itself (_init_rollout stands in front of actor.initialize up to 0.5.3, behind it from 1.0.0 on).
void set_pass_order(Job& job) {
  const std::string& version = job.roles.front().trainer.framework_version;
  job.servers_start_first = compare_versions(version, "1.0.0") < 0;
  job.pass_order = {RoleKind::critic, RoleKind::reference, RoleKind::actor};
  if (compare_versions(version, "1.0.3") < 0) job.pass_order = {RoleKind::critic, RoleKind::actor, RoleKind::reference};
}

}  // namespace oomplan::areal
