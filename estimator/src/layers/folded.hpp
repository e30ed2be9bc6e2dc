// LoRA of a parameter that is no linear layer's weight: the low-rank product is folded into it before its module runs.
//
// huggingface/peft, src/peft/tuners/lora/layer.py (ParamWrapper), 0.21.2: a parametrization while the module's forward runs.
// Fused experts fold with one baddbmm, a matrix adds the finished product.
#pragma once
#include "layers/eager.hpp"

namespace oomplan {

/// The two factors of a stack of matrices [E, out, in], in its format: [E, out, r] and [E, r, in]. Empty without adapters.
struct LowRankFactors {
  Tensor left, right;
};
LowRankFactors low_rank_factors(Eager&, int parameter);
/// The stack plus the product of its factors; the parameter itself without adapters.
Tensor folded_stack(Eager&, int parameter, const LowRankFactors&);
/// A matrix [out, in] plus the product of its pair; the parameter itself without adapters.
Tensor folded_matrix(Eager&, int parameter);

}  // namespace oomplan
