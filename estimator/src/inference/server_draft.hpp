// A draft of another checkpoint as the engines build it: EAGLE and EAGLE-3 heads of Llama's layers. Internal to inference/ and to
// the checks of a job.
#pragma once
#include <oomplan/job.hpp>

#include "catalog/architecture.hpp"
#include "inference/server_model.hpp"

namespace oomplan {

/// What is said, or what the draft's config.json says; auto_ where it says nothing.
DraftMethod draft_method(const Server&);

/// Its layers with the widths that the engines give them. Throws InputError where the draft was not looked up, or names no
/// method.
Architecture draft_as_built(const Server&);

/// `layers`: draft_as_built() as a model of its own.
void add_draft(ServerModel&, const Architecture& draft, DraftMethod, const ServerModel& layers);

}  // namespace oomplan
