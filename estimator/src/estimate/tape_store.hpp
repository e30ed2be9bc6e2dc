// Tapes, kept: making one runs the model in the simulator (a few hundred microseconds), playing one costs nanoseconds.
//
// A store answers equal questions with the same tape. It may be shared between threads. What it holds never changes an answer.
#pragma once
#include <memory>

#include "layers/kept_tapes.hpp"

namespace oomplan {

class TapeStore {
 public:
  /// The process-wide store of estimate() and explain(); keeps the last kMost tapes.
  static TapeStore& shared();
  std::shared_ptr<const Tape> get(const std::shared_ptr<const Architecture>&, const PassOptions&);

 private:
  static constexpr std::size_t kMost = 64;
  KeptTapes<PassOptions> tapes_{kMost};
};

}  // namespace oomplan
