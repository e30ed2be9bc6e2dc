// How slime and its kin bring Megatron's weights to their servers, and what of a trainer's process stays while it sleeps: by
// release, from the facts of the framework.
#pragma once
#include "estimate/role_run.hpp"

namespace oomplan {

/// Plans of the sender and of a server that takes its weights. REQUIRES: the framework's loop gathers_buckets.
void send_in_buckets(RoleRun& from, RoleRun& to, const Job&, const Catalog&, SyncPoint);

/// What a saver leaves on the host, and copies of the weights there. REQUIRES: run.megatron is made.
void resolve_saver(RoleRun&, const Catalog&);

/// Communicators of a process whose groups are destroyed while it sleeps: what stays, and what a weight update makes for itself.
void resolve_sleeping_groups(ProcessConstants&, const Job&, const Role&, const Catalog&);

}  // namespace oomplan
