// How the releases with launchers run a job: whose process a role lives in, and how the loaders share a batch.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "frontends/areal/teller.hpp"

namespace oomplan::areal {

/// Why roles without GPUs of their own live in the actor's process; "" when each has a process. Up to 1.0.2: from 1.0.3 on
/// every engine has a string of its own.
std::string shares_process(const Teller&);

/// A batch that the data-parallel ranks do not share evenly, where AReaL refuses it. `file`: the configuration's name, since
/// some entry scripts divide the batch themselves.
std::optional<Problem> uneven_batch(const Teller&, std::string_view file);

}  // namespace oomplan::areal
