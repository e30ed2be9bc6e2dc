// Tapes, kept with what they were made from: a store answers equal questions with the same tape.
#pragma once
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "layers/tape.hpp"

namespace oomplan {

/// May be shared between threads. What it holds never changes an answer. It keeps the last `most` tapes.
template <class Options>
class KeptTapes {
 public:
  explicit KeptTapes(std::size_t most) : most_(most) {}

  /// `make`: of such an architecture and such options. It is called without the lock: two threads may make the same one.
  template <class Make>
  std::shared_ptr<const Tape> get(const std::shared_ptr<const Architecture>& architecture, const Options& options, Make&& make) {
    return get(*architecture, options, make, [&] { return architecture; });
  }
  template <class Make>
  std::shared_ptr<const Tape> get(const Architecture& architecture, const Options& options, Make&& make) {
    return get(architecture, options, make, [&] { return std::make_shared<const Architecture>(architecture); });
  }

 private:
  struct Row {
    std::shared_ptr<const Architecture> architecture;
    Options options;
    std::shared_ptr<const Tape> tape;
  };

  template <class Make, class Share>
  std::shared_ptr<const Tape> get(const Architecture& architecture, const Options& options, Make& make, const Share& share) {
    {
      const std::lock_guard lock(mutex_);
      for (const auto& row : rows_)
        if (row.options == options && (row.architecture.get() == &architecture || *row.architecture == architecture))
          return row.tape;
    }
    std::shared_ptr<const Tape> tape = make();
    const std::lock_guard lock(mutex_);
    if (rows_.size() >= most_) rows_.erase(rows_.begin());
    rows_.push_back({share(), options, tape});
    return tape;
  }

  std::size_t most_;
  std::mutex mutex_;
  std::vector<Row> rows_;
};

}  // namespace oomplan
