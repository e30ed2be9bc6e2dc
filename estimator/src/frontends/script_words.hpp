// The words of a job that a script starts: those of its command, and changes are made in the script's own text.
#pragma once
#include <memory>
#include <optional>
#include <string>

#include "frontends/words.hpp"

namespace oomplan {

/// `script`: the text in which the command stands; `words`: those of the command that it starts.
std::unique_ptr<TextWords> words_in_script(const Source& script, std::unique_ptr<TextWords> words, const Catalog&);

/// The script with `override` (key=value, +key=value) for the value that it gives the key, or behind the line that names the
/// program where it gives none. nullopt: the key stands there several times, or the program does.
std::optional<std::string> with_override(const std::string& script, const std::string& override_, const std::string& program);

}  // namespace oomplan
