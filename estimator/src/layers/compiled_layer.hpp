// A TransformerBlock of torchtitan or of AReaL's Archon under torch.compile: one graph, with its checkpoint inside (apply_compile
// behind apply_ac, torchtitan/models/llama3/infra/parallelize.py, December 2024 to 0.2.2; compiled_archon.hpp).
#pragma once
#include <string>

#include "layers/decoder.hpp"

namespace oomplan {

/// Why a block cannot be described; "" when it can.
std::string unsupported_compiled(const Architecture&, const KernelOptions&, Recompute, bool training);

struct CompiledPass {
  Recompute recompute;
  bool training;  ///< false: the inference program runs
  Tensor table;   ///< Archon: the layer's own copy of the table of positions
};

/// The block's forward pass: x is held by the caller.
Tensor run_compiled_layer(Eager& g, const Architecture&, const Layer&, const LayerLeaves&, const KernelOptions&,
                          const CompiledPass&, const Tensor& x);

/// torchtitan's loss under torch.compile: cross-entropy of logits that become fp32 inside of the kernels alone.
Tensor compiled_cross_entropy(Eager& g, Tensor logits, const Tensor& labels);

}  // namespace oomplan
