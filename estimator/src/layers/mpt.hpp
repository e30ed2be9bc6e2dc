// MPT's layers (transformers, models/mpt/modeling_mpt.py, 5.23.0): distances are added to the scores in fp32.
#pragma once
#include "layers/decoder.hpp"

namespace oomplan {

/// MptBlock.forward; `weights`: what it returns beside its output.
Tensor run_mpt_layer(Eager& g, const Architecture&, const Layer&, const LayerLeaves&, const KernelOptions&, const LayerContext&,
                     const Tensor& x, Tensor& weights);

/// build_mpt_alibi_tensor: for as many tokens as the model takes.
Tensor make_mpt_alibi(Eager& g, std::int64_t heads, std::int64_t positions);

}  // namespace oomplan
