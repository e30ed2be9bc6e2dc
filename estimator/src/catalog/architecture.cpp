#include "catalog/architecture.hpp"

namespace oomplan {

std::int64_t Architecture::layers() const {
  std::int64_t out = 0;
  for (const LayerRun& run : runs) out += run.count;
  return out;
}

}  // namespace oomplan
