#include "estimate/tape_store.hpp"

namespace oomplan {

TapeStore& TapeStore::shared() {
  static TapeStore store;
  return store;
}

std::shared_ptr<const Tape> TapeStore::get(const std::shared_ptr<const Architecture>& architecture, const PassOptions& options) {
  return tapes_.get(architecture, options, [&] { return make_tape(*architecture, options); });
}

}  // namespace oomplan
