// Oumi's programs as scripts and commands start them.
#pragma once
#include <span>

#include "frontends/handing.hpp"

namespace oomplan::oumi {

std::span<const launch::EntryPoint> entry_points();
/// The file that -c names with the arguments behind it. Words in front of Oumi's own (torchrun and its flags) stand in
/// Source::arguments.
Source take(Handing&);

}  // namespace oomplan::oumi
