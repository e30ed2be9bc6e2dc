// Linear layers of a frozen base as GPTQ checkpoints store them, run by the kernels that train: AutoGPTQ's "triton v2".
//
// Source: AutoGPTQ/AutoGPTQ, auto_gptq/nn_modules/qlinear/qlinear_tritonv2.py, and its copy in
// foundation-model-stack/fms-acceleration, plugins/accelerated-peft, gptqmodel/nn_modules (0.4.0); adapters by
// huggingface/peft, src/peft/tuners/lora/gptq.py, 0.13.2.
#pragma once
#include <string>
#include <vector>

#include "layers/ops.hpp"

namespace oomplan::gptq {

/// What takes the place of a matrix with `in` inputs and `out` outputs: packed numbers, then packed zeros, scales and the group
/// of every input. Under FSDP the first two are parameters.
std::vector<PackedTensor> tensors(const PackedOptions&, std::int64_t in, std::int64_t out);

/// QuantLinear.forward: the matrix is unpacked in forward and in backward; nothing else is kept.
Tensor linear(Eager& g, const Tensor& x, int weight, int bias, Dim rows, Shape out_shape, const std::string& name);

/// What peft makes of the base layer's `result`: the pair's product is added in place. `result` is a view of a function's output
/// unless the layer has a bias, and backward copies a gradient that goes through a view written to.
Tensor low_rank(Eager& g, Tensor result, const Tensor& given, const Leaf& base, Dim rows, const std::string& name);

}  // namespace oomplan::gptq
