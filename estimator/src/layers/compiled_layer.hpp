// A TransformerBlock of torchtitan under torch.compile: one graph, with its checkpoint inside (apply_compile behind apply_ac,
// torchtitan/models/llama3/infra/parallelize.py, December 2024 to 0.2.2).
#pragma once
#include <string>

#include "layers/decoder.hpp"

namespace oomplan {

/// Why a block cannot be described; "" when it can.
std::string unsupported_compiled(const Architecture&, const KernelOptions&, Recompute);

/// The block's forward pass in training: x is held by the caller.
Tensor run_compiled_layer(Eager& g, const Architecture&, const Layer&, const LayerLeaves&, const KernelOptions&, Recompute,
                          const Tensor& x);

/// torchtitan's loss under torch.compile: cross-entropy of logits that become fp32 inside of the kernels alone.
Tensor compiled_cross_entropy(Eager& g, Tensor logits, const Tensor& labels);

}  // namespace oomplan
