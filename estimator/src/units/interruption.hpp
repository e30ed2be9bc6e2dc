// A long computation that is told to stop gets out of wherever it is.
//
// Who runs one for a caller that may lose patience names the token once, for his thread; loops that can take long pass an
// interruption_point() now and then, which throws Interrupted once the token says so. On a thread without a token a point does
// nothing. What was being made is lost; stores keep what they had. REQUIRES of a point: no destructor comes to it.
#pragma once
#include <stop_token>

namespace oomplan {

/// No std::exception: nobody takes it for a failure.
struct Interrupted {};

/// This thread's work is for `stop`, as long as one lives; they nest. REQUIRES: `stop` outlives it.
class InterruptionScope {
 public:
  explicit InterruptionScope(const std::stop_token& stop);
  ~InterruptionScope();
  InterruptionScope(const InterruptionScope&) = delete;
  InterruptionScope& operator=(const InterruptionScope&) = delete;

 private:
  const std::stop_token* before_;
};

void interruption_point();
/// The same, looked at every 1024th time: `n` counts what a loop does.
template <class Number>
void interruption_point_at(Number n) {
  if (n % 1024 == 0) [[unlikely]]
    interruption_point();
}

/// Does `work` until it is done or interrupted.
template <class Work>
void until_interrupted(const std::stop_token& stop, Work&& work) {
  const InterruptionScope scope(stop);
  try {
    work();
  } catch (const Interrupted&) {
  }
}

}  // namespace oomplan
