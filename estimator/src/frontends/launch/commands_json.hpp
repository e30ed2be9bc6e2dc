// The commands that a script would start, as data.
#pragma once
#include <string>

#include "frontends/launch/script.hpp"

namespace oomplan::launch {

/// {"commands": [{"words": ["python3", "-m", ...], "file": "run.sh", "line": 12, ...}], "notes": [...], ...}. A word with unknown
/// parts is a list: "ckpt/", {"unset": "NAME"}.
std::string commands_json(const ScriptReading&);
/// The same for a reader: a command a paragraph, unknown parts as ${NAME}.
std::string commands_text(const ScriptReading&);
/// A text with ${NAME} for what is unknown.
std::string shown_text(const Text&, const std::vector<Unknown>&);

}  // namespace oomplan::launch
