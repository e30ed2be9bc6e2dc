// Mixture-of-experts blocks of the modeling files; here grouped_mm over all experts (integrations/moe.py), the rest in experts.
#pragma once
#include "layers/decoder.hpp"
#include "layers/families.hpp"
#include "layers/router.hpp"

namespace oomplan {

struct Mixed {
  Tensor output;   ///< [B, S, H]
  Tensor weights;  ///< of the router, release 4: its logits; some modules return them
  Tensor routed;   ///< what the experts gave, where the layer keeps a name for it (Granite)
};
Mixed moe_block(Eager& g, const FamilyCode&, const FeedForward&, std::int64_t hidden, const Tensor& x, const LayerLeaves&,
                const KernelOptions&);

/// The experts alone, of rows that were routed.
Tensor routed_experts(Eager& g, const FeedForward&, std::int64_t hidden, const Tensor& x_TH, const Routing&, const LayerLeaves&,
                      const KernelOptions&);

}  // namespace oomplan
