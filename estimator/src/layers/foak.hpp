// Fused operators of foundation-model-stack/fms-acceleration, plugins/fused-ops-and-kernels (read at 0.6.1): RMSNorm, rotary
// positions and cross-entropy of its kernels/unsloth, which are Unsloth's of 2024. Adapters: foak_lora.hpp.
//
// A Triton kernel allocates nothing: what one of these operators takes is in the Python function around it.
#pragma once
#include <string>

#include "layers/eager.hpp"

namespace oomplan {

struct Architecture;
struct KernelOptions;

/// Why this architecture cannot be run with the operators that are asked for; "" when it can.
std::string unsupported_foak(const Architecture&, const KernelOptions&);

namespace foak {

/// rms_layernorm.py: saves x and one fp32 a row; the gradient of x is written into the one that comes in. The weight, a leaf,
/// gets no gradient at all.
Tensor rms_norm(Eager& g, const Tensor& x, int weight, const std::string& name);

/// rope_embedding.py: x is rotated where it lies; cos and sin are attributes of ctx. `by_head`: the gradient comes with heads in
/// front of tokens and is copied.
Tensor rope(Eager& g, const Tensor& x, const Tensor& cos, const Tensor& sin, bool by_head);

/// cross_entropy_loss.py on fp32 logits, one row a token: saves the logits and one fp32 a row, and writes the gradient over the
/// logits in backward. Above 65536 columns a row's logsumexp is put together of parts.
Tensor cross_entropy(Eager& g, const Tensor& logits, const Tensor& labels);

}  // namespace foak
}  // namespace oomplan
