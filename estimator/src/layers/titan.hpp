// Dense models of torchtitan, operator by operator: the kernel set `torchtitan`.
//
// Read in pytorch/torchtitan, torchtitan/models/llama3 (llama/ before 2025-06) and torchtitan/models/qwen3 (experiments/qwen3
// before 2025-10): from December 2024 to 0.2.2. Legend as in decoder.hpp.
#pragma once
#include <string>

#include "layers/decoder.hpp"

namespace oomplan {

/// Why torchtitan's models do not describe this architecture; "" when they do.
std::string unsupported_titan(const Architecture&, const KernelOptions&);

/// nn.RMSNorm, or torchtitan's own.
Tensor titan_norm(Eager& g, const Tensor& x, const NormLeaf&, const KernelOptions&, const std::string& name);

/// TransformerBlock.forward: x is held by the caller.
Tensor run_titan_layer(Eager& g, const Architecture&, const Layer&, const LayerLeaves&, const KernelOptions&, const Tensor& x);

/// Bytes of the model's table of positions, a buffer: complex numbers for Llama, cosines and sines for Qwen3. `context` ranks
/// share a sequence.
Bytes titan_buffers(const Architecture&, std::int64_t sequence_tokens, std::int64_t context);

}  // namespace oomplan
