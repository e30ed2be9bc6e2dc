// The text of a job file on disk or on standard input, for the program and the bindings.
#pragma once
#include <optional>
#include <string>

#include <oomplan/oomplan.hpp>

namespace oomplan {

/// `-` is standard input. Throws InputError with the path when the file is missing, a folder, unreadable or larger than a job can
/// be.
Source read_file(const std::string& path);

/// For Source::open: the text of a file that a job names; nullopt when there is none. Throws as read_file does.
std::optional<std::string> text_of_file(const std::string& path);

}  // namespace oomplan
