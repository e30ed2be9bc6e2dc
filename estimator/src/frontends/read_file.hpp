// The text of a job file on disk or on standard input, for the program and the bindings.
#pragma once
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <oomplan/oomplan.hpp>

namespace oomplan {

/// `-` is standard input. Throws InputError with the path when the file is missing, a folder, unreadable or larger than a job can
/// be.
Source read_file(const std::string& path);

/// The text of a file that its user named; nullopt when there is none. Throws as read_file does.
std::optional<std::string> text_of_file(const std::string& path);

/// For Source::open: the text of a file that the file `job` names; nullopt when there is none. A job file may come from someone
/// else, so what it names is opened below its own folder and below `roots` alone, wherever links lead: elsewhere InputError
/// names the path and neither says what it holds nor whether it is there. Throws InputError for a root that is no folder.
std::function<std::optional<std::string>(const std::string& path)> files_beside(const std::string& job,
                                                                                const std::vector<std::string>& roots);

/// Is this file a script that starts jobs?
bool is_script_file(const Source&);
/// The source of a script that read_file gave, run from this process's folder: it may read files below its own folder, that one
/// and `roots`. Overrides and what else is asked are set by the caller.
Source script_source(Source script, std::vector<std::string> arguments, std::map<std::string, std::string> environment,
                     std::vector<std::string> roots);
/// The source of a command that somebody typed: files that its words name may lie anywhere, others as for a script.
Source command_source(std::vector<std::string> command, std::map<std::string, std::string> environment,
                      std::vector<std::string> roots);

}  // namespace oomplan
