// The indexer of DeepSeek V3.2 and GLM-5, which chooses the keys that a query attends to
// (transformers 5.23, models/{deepseek_v32,glm_moe_dsa}/modeling_*.py).
//
// It runs without gradients. What eager and SDPA attention get of it is a mask: as if all keys were there.
#pragma once
#include "layers/decoder.hpp"
#include "layers/families.hpp"

namespace oomplan {

/// Positions of the chosen keys, [B, S, K] int32. `latent`: the normed query in its low rank; `x`: the layer's normed input.
Tensor choose_keys(Eager& g, const FamilyCode&, const Mixer&, const LayerLeaves&, const KernelOptions&, const LayerContext&,
                   const Tensor& latent, const Tensor& x);

/// The attention's mask without what was not chosen; `hidden` is the name of those, which the caller keeps.
Tensor mask_of_chosen(Eager& g, const Tensor& mask, const Tensor& chosen, Tensor& hidden);

/// "" where attention with an indexer is described.
std::string unsupported_indexer(const KernelOptions&);

}  // namespace oomplan
