// What an estimate assumes of the sequences that share a packed micro-batch: how many they are is data.
#pragma once
#include <string>

#include <oomplan/job.hpp>

namespace oomplan {

/// A sentence for an actor or a model that AReaL's Megatron engine trains, whose loss copies sequences out of their padding one
/// by one; "" where their number changes no level. `sequence`: tokens of the longest one; 0: not known.
std::string packing_assumption(const Role&, std::int64_t sequence);

}  // namespace oomplan
