// What guesses ahead for a server.
#pragma once
#include <oomplan/job.hpp>

namespace oomplan {

/// What is said, or what the draft's config.json says; auto_ where it says nothing.
DraftMethod draft_method(const Server&);

}  // namespace oomplan
