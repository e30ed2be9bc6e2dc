// A search over a job whose trainers run on Megatron, beside servers or other roles: RL's usual job.
//
// A point of the trainers is one of megatron_axes(), with a budget of tokens and what spares memory beside it; the bound orders
// points and leaves out those that cannot fit. Servers are chosen first, for the job's own trainers, as what these hold while
// servers work depends little on their layout. Estimates judge the rest: of a layout the fastest point, then by halves along
// those that are slower and need less.
#pragma once
#include "catalog/catalog.hpp"
#include "search/admit.hpp"

namespace oomplan {

/// REQUIRES: the first role that learns is on engine megatron. Throws InputError for what is not searched, by name.
Found search_megatron_roles(const Job&, const Space&, int keep, const Catalog&, const std::stop_token&, const Admit& admit);

}  // namespace oomplan
