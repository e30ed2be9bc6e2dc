#include "estimate/student_t.hpp"

#include <cmath>
#include <numbers>

namespace oomplan {

double student_t_below(double t, int degrees_of_freedom) {
  const double angle = std::atan2(t, std::sqrt(static_cast<double>(degrees_of_freedom)));
  const double cosine = std::cos(angle), sine = std::sin(angle);
  const bool odd = degrees_of_freedom % 2 != 0;
  double term = odd ? cosine : 1, sum = 0;
  for (int k = odd ? 1 : 0; 2 * k < degrees_of_freedom; ++k) {
    sum += term;
    term *= cosine * cosine * (odd ? 2.0 * k / (2.0 * k + 1) : (2.0 * k + 1) / (2.0 * k + 2));
  }
  const double between = odd ? 2 / std::numbers::pi * (angle + sine * sum) : sine * sum;  // P(|X| <= |t|), signed
  return 0.5 + 0.5 * between;
}

}  // namespace oomplan
