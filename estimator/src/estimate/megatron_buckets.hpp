// Parameters of Megatron as slime and its kin put them in buckets for servers: by their own names, whole, in the order in which
// they go.
#pragma once
#include "sync/sync.hpp"

namespace oomplan {

/// How parameters become the checkpoint's tensors.
struct BucketForm {
  bool gathers_alone = false;  ///< also a rank that splits matrices with no other gathers them
  bool bridge = false;         ///< Megatron-Bridge makes them; experts go in front
  bool exports = false;        ///< ... in its own order, of experts those of a rank
  bool merges = false;         ///< adapters of LoRA are merged into what they stand beside
};

/// All of a model, in the order of names: on shared GPUs every rank puts the same parameters in its buckets
/// (slime/backends/megatron_utils/update_weight/hf_weight_iterator_direct.py, 0.2.0 to 0.3.1; Relax's
/// hf_weight_iterator_bridge.py).
SyncModel megatron_buckets(const Architecture&, const Trainer&, const BucketForm&);

/// What a stage has: first all but the experts, then a rank's experts, each with those of the ranks that share them
/// (update_weight_from_distributed.py).
SyncModel megatron_stage_buckets(const Architecture&, const Trainer&, std::int64_t stage, const BucketForm&);

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
