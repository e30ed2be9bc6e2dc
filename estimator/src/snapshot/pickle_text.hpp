// The texts and numbers of pickle protocol 0, which stand in the file as lines of ASCII.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace oomplan::snapshot {

/// Decimal, 64 bits. Nothing when it is another thing.
std::optional<std::int64_t> integer_of(std::string_view);
std::optional<double> real_of(std::string_view);
/// A Python 2 literal in quotes, 'a\'b\n\x41'; nothing when the quotes are missing.
std::optional<std::string> quoted_text(std::string_view);
/// Python's raw-unicode-escape: Latin-1 with \uXXXX and \UXXXXXXXX, to UTF-8. Nothing when an escape is broken.
std::optional<std::string> escaped_text(std::string_view);

}  // namespace oomplan::snapshot
