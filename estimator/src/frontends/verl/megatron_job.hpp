// Settings of a role on verl's Megatron engine.
#pragma once
#include <string>
#include <vector>

#include "frontends/verl/settings.hpp"

namespace oomplan::verl {

void megatron_settings(VerlSettings&, const VerlMeaning&, const std::string& role, std::vector<Note>& notes);

}  // namespace oomplan::verl
