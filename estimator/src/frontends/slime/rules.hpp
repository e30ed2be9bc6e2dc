// What slime and Megatron themselves refuse of a command, and what is not described yet, each at its flag.
#pragma once
#include "frontends/slime/meaning.hpp"

namespace oomplan::slime {

/// Adds to `text.told`.
void check(SlimeText& text, const SlimeMeaning&);
/// slime's own rows.
std::span<const NotYet> not_yet();

}  // namespace oomplan::slime
