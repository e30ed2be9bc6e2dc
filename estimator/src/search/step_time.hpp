// How long a step of a job takes by the model that ranks a search: only to compare two settings of one job.
#pragma once
#include <optional>

#include <oomplan/job.hpp>

#include "catalog/catalog.hpp"
#include "estimate/role_run.hpp"

namespace oomplan {

/// Seconds; nothing for jobs that a search cannot take apart, or whose step is not stated.
std::optional<double> step_seconds(const Job&, const Catalog&, TapeStore&);
/// Does the model see what a change of this knob costs?
bool models_time_of(std::string_view knob);

}  // namespace oomplan
