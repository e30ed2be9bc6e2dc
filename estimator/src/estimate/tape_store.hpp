// Tapes, kept: making one runs the model in the simulator (a few hundred microseconds), playing one costs nanoseconds.
//
// A store answers equal questions with the same tape. It may be shared between threads. What it holds never changes an answer.
#pragma once
#include <memory>
#include <mutex>
#include <vector>

#include "layers/tape.hpp"

namespace oomplan {

class TapeStore {
 public:
  /// The process-wide store of estimate() and explain(); keeps the last kMost tapes.
  static TapeStore& shared();
  std::shared_ptr<const Tape> get(const std::shared_ptr<const Architecture>&, const PassOptions&);

 private:
  static constexpr std::size_t kMost = 64;
  struct Row {
    std::shared_ptr<const Architecture> architecture;
    PassOptions options;
    std::shared_ptr<const Tape> tape;
  };
  std::mutex mutex_;
  std::vector<Row> rows_;
};

}  // namespace oomplan
