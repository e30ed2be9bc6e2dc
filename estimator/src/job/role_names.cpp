#include "job/role_names.hpp"

#include <fmt/format.h>

#include "job/names.hpp"

namespace oomplan {

namespace {

std::string nth(RoleKind kind, std::size_t n) {
  return n == 1 ? std::string(spelling(kind)) : fmt::format("{}_{}", spelling(kind), n);
}

}  // namespace

std::string teacher_name(std::size_t n) { return nth(RoleKind::teacher, n); }
std::string judge_name(std::size_t n) { return nth(RoleKind::reward, n); }

std::optional<RoleKind> kind_of_role_named(std::string_view name) {
  for (std::size_t n = 2; n <= kMostTeachers; ++n)
    if (name == teacher_name(n)) return RoleKind::teacher;
  for (std::size_t n = 2; n <= kMostJudges; ++n)
    if (name == judge_name(n)) return RoleKind::reward;
  if (name == kActorForward) return RoleKind::reference;
  return parse<RoleKind>(name);
}

std::vector<std::string> role_names() {
  std::vector<std::string> out;
  for (const std::string& kind : spellings<RoleKind>()) {
    out.push_back(kind);
    if (kind == spelling(RoleKind::reference)) out.emplace_back(kActorForward);
    if (kind == spelling(RoleKind::reward))
      for (std::size_t n = 2; n <= kMostJudges; ++n) out.push_back(judge_name(n));
    if (kind == spelling(RoleKind::teacher))
      for (std::size_t n = 2; n <= kMostTeachers; ++n) out.push_back(teacher_name(n));
  }
  return out;
}

}  // namespace oomplan
