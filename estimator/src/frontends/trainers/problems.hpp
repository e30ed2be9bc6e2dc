// Problems of a configuration itself beside those of the job that is made of it: each place is spoken of once.
#pragma once
#include <string>
#include <vector>

#include <oomplan/oomplan.hpp>

#include "frontends/native.hpp"

namespace oomplan::trainers {

/// Adds those of `more` whose place none of `said` has spoken of.
void add_untold(std::vector<Problem>& said, std::vector<Problem> more);

/// Puts `said` in front of the job's own problems, of which those at the same places go: what is refused is not asked for on top.
/// Problems and notes that name no file get `file`.
void put_in_front(const std::vector<Problem>& said, NativeText& job, std::vector<Note>& notes, const std::string& file);

}  // namespace oomplan::trainers
