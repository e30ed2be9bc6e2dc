// What somebody who turns AReaL's knobs should know about the values of this file, beside what is wrong: a knob that does nothing
// for memory, a budget that holds one turn and not a conversation.
#pragma once
#include <vector>

#include "frontends/areal/meaning.hpp"

namespace oomplan::areal {

/// `root`: the tree of the file over the defaults.
std::vector<Note> remarks_of(const Meaning&, const compose::Node& root);

}  // namespace oomplan::areal
