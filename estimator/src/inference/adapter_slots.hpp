// Room for LoRA adapters beside the layers of a server's model.
//
// A slot is a pair [r, in] and [out, r] beside every linear layer that can be adapted, made when the server starts whatever
// adapters come: r is the largest rank that the server was started for. Legend: r rank, h hidden, V vocabulary, tp
// tensor-parallel.
#pragma once
#include <optional>

#include <oomplan/units/errors.hpp>

#include "inference/server_model.hpp"

namespace oomplan {

/// Adds the slots to every kind of layer, and to embedding and head where the engine makes them there. REQUIRES: the model was
/// made of this architecture. Throws InputError where the slots beside some layer are not described.
void add_adapter_slots(ServerModel&, const Architecture&, const Server&);

/// What stands beside the slots and is not described, without its place.
std::optional<Problem> slots_problem(const Architecture&, EngineKind, const Server&);

}  // namespace oomplan
