// In which order AReaL's trainer loads roles and asks them for log-probs and values.
#pragma once
#include <oomplan/job.hpp>

namespace oomplan::areal {

/// Sets what the job's order follows from; of AReaL's jobs alone. REQUIRES: roles know their framework and its version.
void set_pass_order(Job&);

}  // namespace oomplan::areal
