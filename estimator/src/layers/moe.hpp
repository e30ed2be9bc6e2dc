// Mixture-of-experts blocks of the modeling files, with grouped_mm over all experts (integrations/moe.py).
#pragma once
#include "layers/decoder.hpp"

namespace oomplan {

struct Mixed {
  Tensor output;   ///< [B, S, H]
  Tensor weights;  ///< of the router: some modules return them
};
Mixed moe_block(Eager& g, const FeedForward&, std::int64_t hidden, const Tensor& x, const LayerLeaves&);

}  // namespace oomplan
