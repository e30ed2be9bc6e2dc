// What kernels take, and which framework says no where they are asked for more. One table: docs/training.md, "What kernels take".
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <oomplan/job.hpp>

#include "catalog/architecture.hpp"

namespace oomplan {

/// One requirement of a kernel or engine that a job can break.
struct KernelNeed {
  std::string_view name;      ///< of the row, for tests
  std::string_view knob;      ///< of the role, that is to be changed
  std::string_view expected;  ///< nearest values that are taken
  std::string_view why;       ///< what the framework says, with its place
  bool (*broken)(const Role&, std::string_view sm);
};

std::span<const KernelNeed> kernel_needs();

/// Rows that the role breaks on GPUs of `sm`, in the order of the table. Rows about the model are left out while it has none.
std::vector<const KernelNeed*> broken_needs(const Role&, std::string_view sm);

/// 90 of "sm90"; 0 of others than NVIDIA's.
int compute_capability(std::string_view sm);

}  // namespace oomplan
