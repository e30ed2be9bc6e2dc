// What is wrong with one setting of a role.
#pragma once
#include <string>

namespace oomplan {

struct KnobProblem {
  std::string knob;  ///< without the role
  std::string found, expected, why;
};

}  // namespace oomplan
