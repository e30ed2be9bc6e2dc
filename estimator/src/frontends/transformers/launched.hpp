// Programs of TRL, and scripts that take Transformers' arguments, as scripts and commands start them.
#pragma once
#include <span>

#include "frontends/handing.hpp"

namespace oomplan::transformers {

std::span<const launch::EntryPoint> entry_points();
/// The file that --config names with the words behind it. Words in front of the script's own (accelerate launch and its flags)
/// stand in Source::arguments.
Source take(Handing&);

}  // namespace oomplan::transformers
