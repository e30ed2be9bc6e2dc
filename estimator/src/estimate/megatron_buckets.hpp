// Parameters of Megatron as slime and its kin put them in buckets for servers: by their own names, whole, in the order in which
// they go.
#pragma once
#include "sync/sync.hpp"

namespace oomplan {

/// All of a model, in the order of names: on shared GPUs every rank puts the same parameters in its buckets
/// (slime/backends/megatron_utils/update_weight/hf_weight_iterator_direct.py, 0.2.0 to 0.3.1). `gathers_alone`: also a rank that
/// splits matrices with no other gathers them.
SyncModel megatron_buckets(const Architecture&, const Trainer&, bool gathers_alone);

/// What a stage has: first all but the experts, then a rank's experts, each with those of the ranks that share them
/// (update_weight_from_distributed.py).
SyncModel megatron_stage_buckets(const Architecture&, const Trainer&, std::int64_t stage, bool gathers_alone);

/// Experts that go from the ranks that have them straight to those whose servers want them (expert_routing.py, 0.3.1 and 0.4.0):
/// the buffers of the rank that has most of them, and what of them it hands to its server at once. `server_ranks`: over which a
/// server shares out its experts; 0, 0: no experts.
struct RoutedExperts {
  Bytes staging = 0, sent = 0;
};
RoutedExperts routed_experts(const Architecture&, const Trainer&, std::int64_t server_ranks, Bytes bucket);
/// The same model without its experts.
SyncModel without_experts(SyncModel);

}  // namespace oomplan
