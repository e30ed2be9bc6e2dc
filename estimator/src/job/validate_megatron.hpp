// What of a role's settings Megatron-core refuses, or is not described.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include <oomplan/job.hpp>

namespace oomplan {

struct MegatronProblem {
  std::string knob, found, expected, why;
};
/// A setting of other training engines, or one that is not described with Megatron: it must not be written.
bool foreign_to_megatron(const Role&, std::string_view knob);
/// REQUIRES: the role's engine is megatron.
std::vector<MegatronProblem> megatron_problems(const Job&, const Role&);

/// Of its adapters alone.
std::vector<MegatronProblem> megatron_adapter_problems(const Role&);
/// Of the flex dispatcher alone.
std::vector<MegatronProblem> megatron_flex_problems(const Job&, const Role&);
/// Of Megatron-FSDP alone.
std::vector<MegatronProblem> megatron_fsdp_problems(const Role&);

}  // namespace oomplan
