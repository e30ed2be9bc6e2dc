// A job of Oumi's launcher (`oumi launch up -c gcp_job.yaml`): a script with the machines that it runs on.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include <oomplan/oomplan.hpp>

namespace oomplan::oumi {

/// The script of `run:` with the job's variables and GPUs, on the lines where it stands in the file. Nothing: the source is no
/// job. Throws InputError for a job that says no script, or whose accelerators are no GPUs.
std::optional<Source> script_in(const Source&);

/// A kind of GPU as jobs name it: "A100" of our "A100-40GB".
std::string name_in_jobs(std::string_view gpu);

}  // namespace oomplan::oumi
