// FSDP2 cuts a stack of experts by expert: a rank with none holds the room of one all the same.
#pragma once
#include <string>

#include "training/plan.hpp"

namespace oomplan {

/// Says what a layer's gathered buffer has more than the layer's experts; "" where nothing is added.
std::string expert_room(const Role&, const TrainPlan&, const Tape&);

}  // namespace oomplan
