// Models of torchtune, operator by operator: the kernel sets `torchtune` and `torchtune_packed`.
//
// Read in pytorch/torchtune, torchtune/modules (attention.py, transformer.py, rms_norm.py, loss/ce_chunked_output_loss.py,
// peft/lora.py) and torchtune/models/llama3_1/_position_embeddings.py, 0.4.0. Queries and keys are rotated in fp32, keys and
// values copied to all heads. Packed samples bring positions and a block mask: attention is flex_attention. Legend as in
// decoder.hpp.
#pragma once
#include <string>

#include "layers/decoder.hpp"
#include "layers/heads.hpp"

namespace oomplan {

constexpr bool is_torchtune(Kernels k) { return k == Kernels::torchtune || k == Kernels::torchtune_packed; }
constexpr bool is_torchtune(LossHead h) { return h == LossHead::torchtune || h == LossHead::torchtune_chunked; }

/// Parts of every sequence for which the chunked loss has logits of their own (CEWithChunkedOutputLoss).
inline constexpr std::int64_t kTorchtuneChunks = 8;

/// Why torchtune's models do not describe this architecture; "" when they do.
std::string unsupported_torchtune(const Architecture&, const KernelOptions&);

/// RMSNorm.forward.
Tensor torchtune_norm(Eager& g, const Tensor& x, const NormLeaf&, const std::string& name);
/// TransformerSelfAttentionLayer.forward: x is held by the caller.
Tensor run_torchtune_layer(Eager& g, const Architecture&, const Layer&, const LayerLeaves&, const KernelOptions&,
                           const Tensor& x);
/// Output layer and loss as the recipes' _loss_step has them. `weight`: leaf of the output layer.
Tensor torchtune_loss(Eager& g, Tensor hidden, int weight, const HeadOptions&);

/// Bytes of the table of cosines and sines, one for all layers, as long as the model's longest sequence.
Bytes torchtune_buffers(const Architecture&);

}  // namespace oomplan
