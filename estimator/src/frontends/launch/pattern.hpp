// Patterns of the shell: *, ?, [...] (Bash Reference Manual 5.2, 3.5.8.1).
//
// Units that are quoted are characters. What is unknown stands for any text: a comparison that it decides has no answer.
#pragma once
#include <optional>

#include "frontends/launch/budget.hpp"
#include "frontends/launch/text.hpp"

namespace oomplan::launch {

enum class Match : std::uint8_t { no, yes, unknown };
Match matches(const Text& subject, const Text& pattern, Budget&);

/// Units at the start, or at the end, that the pattern matches: the most or the fewest. nullopt: it does not match.
/// REQUIRES: both are known.
std::optional<std::size_t> matched_front(const Text& subject, const Text& pattern, bool most, Budget&);
std::optional<std::size_t> matched_back(const Text& subject, const Text& pattern, bool most, Budget&);

}  // namespace oomplan::launch
