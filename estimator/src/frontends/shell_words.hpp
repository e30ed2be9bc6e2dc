// Words of a command line as a shell splits them, and back.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace oomplan {

/// Words as a shell would split them: blanks, quotes, backslashes, comments; variables stay as they are. Throws InputError at an
/// open quote, and at what only a shell can run (pipes, several commands).
std::vector<std::string> shell_words(std::string_view text, const std::string& file);
/// Words so quoted that shell_words gives them back.
std::string shell_text(const std::vector<std::string>& words);

}  // namespace oomplan
