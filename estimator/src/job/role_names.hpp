// Names of the roles of a job, which are the keys of a job file: one of each kind, and several teachers.
#pragma once
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <oomplan/job.hpp>

namespace oomplan {

inline constexpr std::size_t kMostTeachers = 8;

/// "teacher", "teacher_2", … of the n-th teacher, which counts from 1.
std::string teacher_name(std::size_t n);
std::optional<RoleKind> kind_of_role_named(std::string_view);
/// "rollout", …, "teacher", "teacher_2" to "teacher_8", "trainer", "server".
std::vector<std::string> role_names();

}  // namespace oomplan
