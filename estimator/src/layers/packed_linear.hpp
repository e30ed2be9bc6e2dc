// The forward and backward pass of bitsandbytes' linear layers, with and without peft's adapters beside them.
#pragma once
#include <string>

#include "layers/ops.hpp"

namespace oomplan {

struct Architecture;
struct FamilyCode;
struct KernelOptions;

/// Why a base of this architecture cannot be packed; "" when it can, or is not.
std::string unsupported_packed(const Architecture&, const FamilyCode&, const KernelOptions&);

namespace ops {

/// Linear4bit.forward. Weight and bias are leaves; bias < 0: none.
Tensor packed_linear(Eager& g, Tensor x, int weight, int bias, Dim rows, Shape out_shape, const std::string& name);

/// What peft's Linear4bit makes of the base layer's `result`: a clone of it and the product of the pair.
Tensor packed_low_rank(Eager& g, Tensor result, const Tensor& given, const Leaf& base, Dim rows, const std::string& name);

}  // namespace ops
}  // namespace oomplan
