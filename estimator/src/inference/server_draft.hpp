// A draft of another checkpoint as the engines build it: EAGLE and EAGLE-3 heads of Llama's layers. Internal to inference/.
#pragma once
#include <oomplan/job.hpp>

#include "catalog/architecture.hpp"
#include "inference/server_model.hpp"
#include "job/draft_method.hpp"

namespace oomplan {

/// Its layers with the widths that the engines give them. Throws InputError where the draft was not looked up, or names no
/// method.
Architecture draft_as_built(const Server&);

/// `layers`: draft_as_built() as a model of its own.
void add_draft(ServerModel&, const Architecture& draft, DraftMethod, const ServerModel& layers);

}  // namespace oomplan
