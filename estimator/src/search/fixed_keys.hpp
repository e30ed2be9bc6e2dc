// Keys that a search holds fixed are keys of the job: a misspelt one would let go what it should hold.
#pragma once
#include <functional>
#include <string>

#include <oomplan/oomplan.hpp>

namespace oomplan {

/// Throws InputError naming every entry of Space::fixed that is no key of the job, of one of its roles, or what `word_of` (a
/// framework's file) calls one of them; each with the nearest that is.
void check_fixed(const Job&, const Space&, const std::function<std::string(const std::string&)>& word_of = {});

}  // namespace oomplan
