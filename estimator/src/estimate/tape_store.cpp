#include "estimate/tape_store.hpp"

namespace oomplan {

TapeStore& TapeStore::shared() {
  static TapeStore store;
  return store;
}

std::shared_ptr<const Tape> TapeStore::get(const std::shared_ptr<const Architecture>& architecture, const PassOptions& options) {
  {
    const std::lock_guard lock(mutex_);
    for (const auto& row : rows_)
      if (row.options == options && (row.architecture == architecture || *row.architecture == *architecture)) return row.tape;
  }
  auto tape = make_tape(*architecture, options);  // without the lock: two threads may make the same one
  const std::lock_guard lock(mutex_);
  if (rows_.size() >= kMost) rows_.erase(rows_.begin());
  rows_.push_back({architecture, options, tape});
  return tape;
}

}  // namespace oomplan
