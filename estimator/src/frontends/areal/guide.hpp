// What a change costs, in the words of AReaL's users: of keys of the file, as its guide on running out of memory orders them
// (areal-project/AReaL, docs/en/best_practices/handling_oom.md, 1.0.4): generation, training, weight updates.
#pragma once
#include <string>
#include <string_view>

#include "frontends/areal/meaning.hpp"

namespace oomplan::areal {

/// Of one of our knobs, "actor.recompute", "rollout.layout"; "" where our own text says all. `megatron`: of a role on that
/// engine.
std::string_view guide_text(std::string_view knob, bool megatron);

/// Where the role's output is kept, below <fileroot>/logs/<user>/<experiment>/<trial>; "" for realhf's workers.
std::string log_of(std::string_view role, const Meaning&, const compose::Node& root);

}  // namespace oomplan::areal
