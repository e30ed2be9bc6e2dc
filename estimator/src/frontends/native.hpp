// Our own job file (docs/job_file.md): a text becomes roles and settings, which frontends/assemble makes into a Job.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include <oomplan/oomplan.hpp>

#include "catalog/catalog.hpp"
#include "frontends/assemble.hpp"

namespace oomplan {

/// What a job file and the overrides behind it say, not yet checked against each other.
struct NativeText {
  std::vector<RoleAsked> roles;
  std::vector<Setting> settings;
  std::vector<Problem> problems;
};
/// Throws InputError when the text is no YAML; everything else is collected.
NativeText read_native(const Source&);
/// What is said beside a framework's text: the node's memory.
void add_beside(NativeText&, const Source&);
/// Throws when there are any, in the order of the file and the command line behind it.
void stop_at(std::vector<Problem>);
/// What a job file of ours says. Throws InputError with all problems.
Reading reading_of_job_file(NativeText, const std::string& file, const Catalog&);
/// The job that a framework's own command line or file says, already in our spelling. Throws InputError with all problems.
Reading reading_of(NativeText, const std::string& file, const Catalog&);
/// The same with a model that the framework's own settings describe, in place of a look-up by name.
Reading reading_of(NativeText, const std::string& file, const Catalog&, std::shared_ptr<const Architecture>);

}  // namespace oomplan
