// The verdict of estimate() and no more: levels first, and where they come near one replay of each class of GPUs on its own size.
#pragma once
#include <optional>
#include <string>

#include <oomplan/oomplan.hpp>

namespace oomplan {

struct Check {
  Estimate levels;  ///< as estimate_quick()
  /// A process that runs out of memory although its levels fit.
  struct Fragmented {
    std::size_t gpu = 0;  ///< number in levels.gpus
    std::string phase;
    Bytes asked = 0;
  };
  std::optional<Fragmented> fragmented;
  bool replayed = false;  ///< false: the levels alone decide, either way
  bool fits() const { return levels.fits() && !fragmented; }
};
/// fits() is that of estimate(). Throws what estimate() throws.
Check check(const Job&, const Catalog* = nullptr);

}  // namespace oomplan
