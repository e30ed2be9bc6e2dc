// Student's t-distribution.
#pragma once

namespace oomplan {

/// P(X <= t) with whole degrees of freedom, a finite sum then (Abramowitz and Stegun, 26.7.3 and 26.7.4).
/// REQUIRES: degrees_of_freedom >= 1.
double student_t_below(double t, int degrees_of_freedom);

}  // namespace oomplan
