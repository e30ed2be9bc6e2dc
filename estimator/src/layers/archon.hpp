// Dense models of AReaL's Archon engine, operator by operator: the kernel set `archon`.
//
// Read in areal-project/AReaL, areal/experimental/models/archon (qwen2, qwen3, attention/varlen.py, activation_checkpoint.py),
// 0.5.2 to 2.0.0: what these releases differ in does not touch memory. Legend as in decoder.hpp; c ranks of Ulysses.
#pragma once
#include <string>

#include "layers/decoder.hpp"

namespace oomplan {

/// Why Archon's models do not describe this architecture; "" when they do.
std::string unsupported_archon(const Architecture&, const KernelOptions&);

/// What a layer gets beside its input: FSDP2 casts floating-point arguments to the compute dtype, so every layer has a copy of
/// the whole table of positions, which a checkpoint keeps.
LayerContext archon_arguments(Eager& g, const Architecture&, const KernelOptions&);

/// RMSNorm written out in fp32.
Tensor archon_norm(Eager& g, const Tensor& x, const NormLeaf&, const KernelOptions&, const std::string& name);

/// TransformerBlock.forward: x is held by the caller.
Tensor run_archon_layer(Eager& g, const Architecture&, const Layer&, const LayerLeaves&, const KernelOptions&,
                        const LayerContext&, const Tensor& x);

/// Bytes of the model's table of positions, an fp32 buffer of cosines and sines for every position that the model knows.
Bytes archon_buffers(const Architecture&);

}  // namespace oomplan
