#include "job/role_names.hpp"

#include <fmt/format.h>

#include "job/names.hpp"

namespace oomplan {

std::string teacher_name(std::size_t n) {
  return n == 1 ? std::string(spelling(RoleKind::teacher)) : fmt::format("{}_{}", spelling(RoleKind::teacher), n);
}

std::optional<RoleKind> kind_of_role_named(std::string_view name) {
  for (std::size_t n = 2; n <= kMostTeachers; ++n)
    if (name == teacher_name(n)) return RoleKind::teacher;
  if (name == kActorForward) return RoleKind::reference;
  return parse<RoleKind>(name);
}

std::vector<std::string> role_names() {
  std::vector<std::string> out;
  for (const std::string& kind : spellings<RoleKind>()) {
    out.push_back(kind);
    if (kind == spelling(RoleKind::reference)) out.emplace_back(kActorForward);
    if (kind == spelling(RoleKind::teacher))
      for (std::size_t n = 2; n <= kMostTeachers; ++n) out.push_back(teacher_name(n));
  }
  return out;
}

}  // namespace oomplan
