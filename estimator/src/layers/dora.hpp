// Weight-decomposed adapters (DoRA) as huggingface/peft runs them beside a linear layer.
#pragma once
#include <string>

#include "layers/ops.hpp"

namespace oomplan::ops {

/// What peft makes of the base layer's `result` and its input. `weight` and `bias` are leaves; bias < 0: none.
Tensor with_dora(Eager& g, Tensor result, const Tensor& given, int weight, int bias, Dim rows, const std::string& name);

}  // namespace oomplan::ops
