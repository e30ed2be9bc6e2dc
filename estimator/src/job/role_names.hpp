// Names of the roles of a job, which are the keys of a job file: one of each kind, several teachers and judges; which may be
// servers.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <oomplan/job.hpp>

namespace oomplan {

inline constexpr std::size_t kMostTeachers = 8, kMostJudges = 4;
/// The actor's weights on GPUs of their own, which compute log-probs (Relax): a reference that is sent every update.
inline constexpr std::string_view kActorForward = "actor_fwd";

/// Roles that serve under a server's engine and compute passes of their own under another.
constexpr bool does_as_its_engine(RoleKind kind) { return kind == RoleKind::teacher || kind == RoleKind::reward; }

/// "teacher", "teacher_2", … of the n-th teacher, which counts from 1.
std::string teacher_name(std::size_t n);
/// "reward", "reward_2", …
std::string judge_name(std::size_t n);
std::optional<RoleKind> kind_of_role_named(std::string_view);
/// "rollout", …, "actor_fwd", "reward", "reward_2" to "reward_4", "teacher", "teacher_2" to "teacher_8", "trainer", "server".
std::vector<std::string> role_names();

}  // namespace oomplan
