// Changes of a job on Megatron in the words of its command line.
#pragma once
#include <string>
#include <vector>

#include <oomplan/job.hpp>

namespace oomplan::megatron {

/// Flags to append to the command of `from` so that it starts `to`; what must go from it is told as "(without --flag)". Both have
/// one role on engine megatron, and differ in what a search changes: ranks, stages, sequence parallelism, recomputation.
std::vector<std::string> words_of_change(const Job& from, const Job& to);

}  // namespace oomplan::megatron
