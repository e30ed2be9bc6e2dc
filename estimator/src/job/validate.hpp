// Is this Job one that can run, as far as the frameworks and engines themselves say?
//
// Nothing here knows memory. `problems` collects everything that makes the job impossible or its numbers unsafe to compute with
// (job/limits); `remarks` what is allowed but probably not meant. Places are those of the values' origins.
#pragma once
#include <vector>

#include <oomplan/oomplan.hpp>

namespace oomplan {

std::vector<Problem> problems(const Job&, const Catalog&);
std::vector<Note> remarks(const Job&);

}  // namespace oomplan
