// Words so quoted that a shell gives them back.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace oomplan::launch {

/// As ${name@Q}: in single quotes.
std::string quoted_word(std::string_view);
/// As printf %q: with backslashes.
std::string escaped_word(std::string_view);
/// A command line; words that need no quotes have none.
std::string command_text(const std::vector<std::string>&);

}  // namespace oomplan::launch
