// The words of a job that a script starts: those of its command, and changes are made in the script's own text.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "frontends/words.hpp"

namespace oomplan {

/// `script`: the text in which the command stands; `words`: those of the command that it starts.
std::unique_ptr<TextWords> words_in_script(const Source& script, std::unique_ptr<TextWords> words, const Catalog&);

/// The script with `override` (key=value, +key=value) for the value that it gives the key, or behind the line that names the
/// program where it gives none. nullopt: the key stands there several times, or the program does.
std::optional<std::string> with_override(const std::string& script, const std::string& override_, const std::string& program);

/// The script with `flag` ("--name=value", "--name") for what it says of it, or on a line of its own in front of that of
/// `neighbour` where it says nothing. nullopt: either stands there several times, or the neighbour does not.
std::optional<std::string> with_flag(const std::string& script, const std::string& flag, std::string_view neighbour);
/// Without the flag and its value. nullopt: it stands there several times, or not at all.
std::optional<std::string> without_flag(const std::string& script, const std::string& name);

}  // namespace oomplan
