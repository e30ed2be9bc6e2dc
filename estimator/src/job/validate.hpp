// Is this Job one that can run, as far as the frameworks and engines themselves say?
//
// Nothing here knows memory. `problems` collects everything that makes the job impossible or its numbers unsafe to compute with
// (job/limits); `remarks` what is allowed but probably not meant. Places are those of the values' origins.
#pragma once
#include <vector>

#include <oomplan/oomplan.hpp>

namespace oomplan {

/// `lengths`: where to tell that the limits of lengths contradict each other, instead of refusing the job. In a framework's file
/// they are bounds of single settings, and sequences that long need not occur.
std::vector<Problem> problems(const Job&, const Catalog&, std::vector<Note>* lengths = nullptr);
/// REQUIRES: the job has no problems.
std::vector<Note> remarks(const Job&, const Catalog&);

}  // namespace oomplan
