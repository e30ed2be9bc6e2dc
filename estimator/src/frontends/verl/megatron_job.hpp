// Settings of a role on verl's Megatron engine.
#pragma once
#include "frontends/verl/settings.hpp"

namespace oomplan::verl {

void megatron_settings(VerlSettings&, const VerlMeaning&, const std::string& role);

}  // namespace oomplan::verl
