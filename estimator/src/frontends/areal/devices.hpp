// For which devices an AReaL file was written, where it shows.
#pragma once
#include <optional>
#include <string>

#include <oomplan/oomplan.hpp>

#include "frontends/compose/node.hpp"

namespace oomplan::areal {

/// A file for NPUs: a variable of the environment that only they have, or the file's own name. The answer is for a GPU even so.
std::optional<Note> npu_note(const compose::Node& composed, const std::string& file, const std::string& gpu);

}  // namespace oomplan::areal
