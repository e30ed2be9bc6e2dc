// A Job back as a job file. The short one (to_yaml of oomplan.hpp) has only what differs from the defaults; the annotated one has
// every value with where it comes from. Both read back to the same Job.
#pragma once
#include <string>

#include <oomplan/oomplan.hpp>

namespace oomplan {

/// Every setting, each with its origin as a comment: what `oomplan read FILE` prints.
std::string to_annotated_yaml(const Job&);
/// "job.yaml:4:9", "command line", "AReaL 1.0.4 default (areal/api/cli_args.py)", "derived: like the actor".
std::string to_text(const Origin&);

}  // namespace oomplan
