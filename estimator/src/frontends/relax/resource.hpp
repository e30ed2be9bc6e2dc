// --resource and --ref-actor-config: which roles Relax starts with how many GPUs, and what the forward roles have of their own.
#pragma once
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

#include "frontends/slime/read.hpp"

namespace oomplan::relax {

/// [services, GPUs of all of them].
struct Asked {
  std::int64_t services = 1, gpus = 0;
  bool readable = true;
  std::string written;  ///< as JSON has it
};
struct Resource {
  bool given = false;
  bool readable = true;  ///< an object of JSON
  std::map<std::string, Asked, std::less<>> roles;

  bool has(std::string_view role) const { return roles.find(role) != roles.end(); }
  /// 0: the role is not there.
  std::int64_t gpus(std::string_view role) const;
};
Resource resource_of(const slime::SlimeText&);

/// The object that a flag has in JSON; nullptr: it has none, or no object.
std::shared_ptr<const nlohmann::json> object_of(const slime::SlimeText&, std::string_view flag);

/// relax/utils/arguments.py: slime_validate_args. One global batch is all that a rollout makes.
bool trains_on_policy(const slime::SlimeText&);
/// An external teacher aside: one that Relax starts itself (relax/core/service_plan.py: is_managed_teacher_enabled).
bool starts_teacher(const slime::SlimeText&, const Resource&);
/// A generative reward model. A role that --resource does not have is passed over (relax/core/controller.py).
bool starts_judge(const slime::SlimeText&, const Resource&);
/// A critic takes turns with the actor on its GPUs (relax/core/controller.py: _actor_rollout_pg_roles).
bool critic_shares(const slime::SlimeText&, const Resource&);

/// What Relax derives from its flags before all else (relax/backends/megatron/arguments.py: _derive_cluster_args_from_resource;
/// relax/utils/arguments.py: slime_validate_args).
void prepare(slime::SlimeText&);

}  // namespace oomplan::relax
