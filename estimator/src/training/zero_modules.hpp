// The calls of a model's modules in one forward and one backward pass, as ZeRO stage 3's hooks see them.
#pragma once
#include <cstdint>
#include <vector>

#include "layers/tape.hpp"
#include "training/zero_trace.hpp"

namespace oomplan {

/// Where in a tape a call happens: in front of an event of a unit's segment.
struct ZeroPlace {
  bool backward = false;
  std::size_t station = 0;
  std::int64_t unit = 0;
  std::size_t at = 0;
};
struct ZeroModules {
  std::vector<ZeroCall> calls;
  std::vector<ZeroPlace> places;  ///< of every call
  /// Number of leaf `leaf` of unit `unit`.
  int parameter(std::size_t leaf, std::int64_t unit) const { return first[leaf] + static_cast<int>(unit); }
  std::vector<int> first;  ///< of every leaf: the number of its first unit's parameter
  int count = 0;
  std::vector<bool>
      outside;  ///< of every leaf: read past its module, so it belongs to the model's own call and is never released
};

/// `detaches`: layers are computed again under checkpoints that are not reentrant.
ZeroModules zero_modules(const Tape&, bool detaches);

}  // namespace oomplan
