// Linear layers of a frozen base in 8 bits (LLM.int8): bitsandbytes' Linear8bitLt as transformers makes it, with a threshold.
//
// Source: bitsandbytes-foundation/bitsandbytes, bitsandbytes/autograd/_functions.py (MatMul8bitLt), backends/cuda/ops.py and
// backends/default/ops.py, read at the releases 0.45.5 to 0.50.2.
#pragma once
#include <string>

#include "layers/ops.hpp"

namespace oomplan::int8 {

/// Linear8bitLt.forward: the input is rounded to 8 bits, the product comes in int32, then in fp16, then in the input's format.
/// The input itself stays with the graph, as an attribute. Backward unpacks the matrix.
Tensor linear(Eager& g, const Tensor& x, int weight, int bias, Dim rows, Shape out_shape, const std::string& name);

}  // namespace oomplan::int8
