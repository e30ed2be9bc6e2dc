#include "job/placement.hpp"

#include <map>

namespace oomplan {

const Role* anchor(const Job& job, const Role& role) {
  const Role* at = &role;
  for (std::size_t steps = 0; steps <= job.roles.size(); ++steps) {
    const Role* next = at->beside.empty() ? nullptr : job.role(at->beside);
    if (next == nullptr) return at;
    at = next;
  }
  return nullptr;
}

std::vector<GpuRange> placement(const Job& job) {
  std::map<const Role*, std::int64_t> first;
  std::int64_t next = 0;
  for (const auto& role : job.roles) {
    const Role* a = anchor(job, role);
    if (a != nullptr && a != &role) continue;
    first[&role] = next;
    next += role.layout().world();
  }
  std::vector<GpuRange> out;
  for (const auto& role : job.roles) {
    const Role* a = anchor(job, role);
    out.push_back(
        {role.name, first[a == nullptr ? &role : a] + (role.beside.empty() ? 0 : role.first_gpu), role.layout().world()});
  }
  return out;
}

}  // namespace oomplan
