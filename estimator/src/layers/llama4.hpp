// Llama 4's experts (transformers 5.23, models/llama4/modeling_llama4.py, Llama4TextMoe): every expert gets every token, times
// its score, in one batched product.
#pragma once
#include "layers/moe.hpp"

namespace oomplan {

/// `weights` of the result: the router's logits, for which the layer has a name.
Mixed every_expert(Eager& g, const FeedForward&, std::int64_t hidden, const Tensor& x, const LayerLeaves&, const KernelOptions&);

}  // namespace oomplan
