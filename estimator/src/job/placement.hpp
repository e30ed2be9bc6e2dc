// Which GPUs each role sits on. Roles take disjoint ranges in the order of the job, a role `beside` another takes that one's, or
// a part of them.
#pragma once
#include <string>
#include <vector>

#include <oomplan/job.hpp>

namespace oomplan {

struct GpuRange {
  std::string role;
  std::int64_t first = 0, count = 0;
  std::int64_t end() const { return first + count; }
  bool operator==(const GpuRange&) const = default;
};

/// One range a role, in the job's order. Never fails: a role beside an unknown role or beside itself takes GPUs of its own, and
/// ranges may pass the end of the cluster; job/validate reports both.
std::vector<GpuRange> placement(const Job&);

/// The role whose GPUs `role` shares in the end (itself when it has its own), or nullptr when `beside` leads in a circle.
const Role* anchor(const Job&, const Role& role);

}  // namespace oomplan
