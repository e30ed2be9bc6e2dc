// What LitGPT's kernel sets go with.
#pragma once
#include <string>
#include <vector>

#include <oomplan/job.hpp>

namespace oomplan {

/// A knob of a training role that does not go with the others, what would, and why.
struct Clash {
  std::string knob, expected, why;
};
/// Empty where the role has neither a kernel set of LitGPT nor anything that only LitGPT has.
std::vector<Clash> litgpt_clashes(const Role&);

}  // namespace oomplan
