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
  /// Of every leaf: read past its module, so it belongs to the model's own call and is never released.
  std::vector<bool> outside;
  /// Of every leaf: its gradient is reduced with the others of its block when the block's backward pass is over.
  std::vector<bool> waits;
};

/// What keeps a gathered buffer although its module has released it.
struct ZeroSaves {
  bool detaches = false;  ///< layers are computed again under checkpoints that are not reentrant
  bool views = false;     ///< experts are multiplied with as views of their stacks
  bool blocks = false;    ///< a block of experts is one module, whose inner ones have no hooks (DeepSpeed's z3_leaf)
};
ZeroModules zero_modules(const Tape&, const ZeroSaves&);

}  // namespace oomplan
