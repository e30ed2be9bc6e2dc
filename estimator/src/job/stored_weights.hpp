// Whether a server has its weights as a quantised checkpoint stores them.
#pragma once
#include <oomplan/job.hpp>

namespace oomplan {

/// Of a rollout it is its framework that decides: most hand their trainer's weights on in 16 bits.
inline bool serves_as_stored(const Role& role) {
  return role.server.as_stored && (role.kind == RoleKind::server || role.trainer.loop.serves_stored);
}

}  // namespace oomplan
