// Scripts of Megatron-LM that a command starts.
#pragma once
#include <span>

#include "frontends/handing.hpp"

namespace oomplan::megatron {

std::span<const launch::EntryPoint> entry_points();
/// The command line as read_command takes it, with what stood in front of it about nodes and GPUs.
Source take(Handing&);

}  // namespace oomplan::megatron
