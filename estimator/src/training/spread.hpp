// Which layers of a model lie on which GPU of a process: transformers' device_map "auto"
// (src/transformers/integrations/accelerate.py get_balanced_memory and infer_auto_device_map, 5.24; before 5.0
// accelerate/utils/modeling.py).
#pragma once
#include <cstdint>
#include <vector>

#include <oomplan/units/bytes.hpp>

namespace oomplan {

/// Layers `from` to `to` of the model; what stands in front of them, and the norm and output layer behind.
struct LayerShare {
  std::int64_t from = 0, to = 0;
  bool front = true, back = true;
  bool empty() const { return from >= to; }
};

/// Sizes of a model's modules.
struct ModuleBytes {
  Bytes embedding = 0, norm = 0, head = 0;  ///< head: 0 where it is tied to the embedding
  Bytes largest_parameter = 0;
  std::vector<Bytes> layers;
};

/// One share a GPU; some may have nothing. `by_parameter`: room is left for the largest parameter, too (transformers 5).
std::vector<LayerShare> spread_layers(const ModuleBytes&, std::int64_t gpus, bool by_parameter);

}  // namespace oomplan
