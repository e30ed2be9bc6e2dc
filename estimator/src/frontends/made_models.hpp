// What RL frameworks do with models whose architecture is known, whichever of them it is.
#pragma once
#include <string_view>

#include "frontends/derivation.hpp"
#include "job/model_makers.hpp"

namespace oomplan {

/// Megatron: what the makers of models (mbridge, Megatron-Bridge) set. `because`: "verl's models are made so".
void derive_made_model(Derivation&, const Role&, const MadeModel&, std::string_view because);
/// FSDP2: tied embeddings belong to the root unit.
void derive_tied_units(Derivation&, const Role&);
/// A release that ran on transformers 4 has its loop over experts (the fact `experts_fused` of models/engines).
void derive_loop_over_experts(Derivation&, const Role&);

}  // namespace oomplan
