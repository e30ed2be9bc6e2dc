// What DeepSpeed's engine does not take, and what of it is not described.
#pragma once
#include <string>
#include <vector>

#include <oomplan/job.hpp>

namespace oomplan {

struct ZeroObjection {
  std::string knob;  ///< of the role
  std::string expected, why;
};
/// Also of the settings that only DeepSpeed has, on another engine.
std::vector<ZeroObjection> zero_objections(const Job&, const Role&);

}  // namespace oomplan
