// A script or a command as a job: what it starts is handed to the reader of its framework (docs/launch.md).
#pragma once
#include <oomplan/oomplan.hpp>

#include "catalog/catalog.hpp"
#include "frontends/launch/script.hpp"

namespace oomplan {

/// Is the source a script or a command, and no job file?
bool is_launch(const Source&);
/// The source that the framework's reader takes, with notes on the way. Throws InputError: the script is broken, starts nothing
/// that is known, starts several jobs, or needs a value that nobody gave.
Source resolved(const Source&, const Catalog&);
/// The same for whoever asks what the text means and estimates nothing: no job need be made of it.
Source resolved_for_facts(const Source&);
/// A text in which stand-ins of what nobody set read as in the script: "${NAME}"; the second is one of JSON.
std::string in_script(const Source& script, const std::string& text);
std::string facts_in_script(const Source& script, const std::string& json);
/// What the script would start. Throws InputError where it cannot be read.
launch::ScriptReading commands_of(const Source&);

}  // namespace oomplan
