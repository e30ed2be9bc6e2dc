// A generator, resolved: its passes, on every GPU over which its layers lie.
#pragma once
#include "estimate/role_run.hpp"

namespace oomplan {

/// As update_trainer. REQUIRES: the role is a generator.
void update_generator(RoleRun&, const Job&, TapeStore&);
/// What a GPU of the role runs: the run itself, or the part of that GPU. Null: nothing lies there.
const RoleRun* run_on(const RoleRun&, std::int64_t stage);

}  // namespace oomplan
