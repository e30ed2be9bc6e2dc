// What one rank of a training role holds and does, resolved: sizes of its sharded units, its tapes, its token counts.
//
// Nothing here is a string look-up or a file: plans are made thousands of times by a search.
//
// Legend: P_u parameters of a unit, N ranks that share it, c bytes of the compute dtype.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include <oomplan/job.hpp>

#include "layers/tape.hpp"
#include "training/flat_units.hpp"
#include "training/passes.hpp"
#include "training/zero_plan.hpp"

namespace oomplan {

/// One FSDP unit (a decoder layer, the embedding, the head, or the root with the rest).
struct ShardUnit {
  std::int64_t shard = 0;         ///< elements on one rank, padded on the first axis
  std::int64_t cast = 0;          ///< of those: elements that are not stored in the compute dtype
  std::int64_t largest_cast = 0;  ///< ... of the largest parameter
  std::int64_t float8 = 0;        ///< of `shard`: elements that are gathered in 8 bits
  std::int64_t largest_float8 = 0;
  Bytes sliced = 0;     ///< slices that stay behind the forward pass, over fewer ranks
  Bytes ahead = 0;      ///< most of slices above the parameters that are still to be freed
  Bytes resident = 0;   ///< of the shard, as stored
  Bytes computed = 0;   ///< of the shard, in the formats that it is computed in
  Bytes reduced = 0;    ///< of the trained part of the shard, in the format that its gradients are reduced in
  Bytes unreduced = 0;  ///< of trained parameters, unsharded, in that format
  Bytes trained_resident = 0;
  bool casts_reduced = false;  ///< of what is trained: it is stored in another format than its gradients are reduced in
};
/// Sizes of a unit in bytes.
struct UnitBytes {
  Bytes resident = 0;   ///< sharded parameters as stored
  Bytes upload = 0;     ///< the shard copied from the host, under CPUOffloadPolicy
  Bytes cast = 0;       ///< the shard in the compute dtype, while it is copied in; 0 when it is stored so
  Bytes scaled = 0;     ///< the largest of the parameters that are gathered in 8 bits, while it is scaled and clamped in fp32
  Bytes gathered = 0;   ///< output of the all-gather; 0 on one rank
  Bytes unsharded = 0;  ///< the parameters that the forward pass uses
  Bytes reduce_input = 0, reduce_output = 0;
  bool casts_reduced = false;  ///< the output of the reduction is cast to the format of the parameters
  Bytes gradient = 0;          ///< sharded, as stored
  Bytes accumulated = 0;       ///< unsharded gradients in the reduce dtype (without gradient sync)
  // resharded over fewer ranks: copies of slices of the unsharded parameters, made one by one as those are freed
  Bytes kept_ahead = 0;  ///< by how much that rises above the unsharded parameters
  Bytes kept_rest = 0;   ///< of all slices: what is not in kept_ahead
};

/// The tapes of a role: they depend on the architecture and on how it runs, not on sizes of batches or shards.
struct TrainTapes {
  std::shared_ptr<const Tape> train, log_probs;
  std::shared_ptr<const Tape> reference = nullptr;  ///< of the forward pass inside of a preference loss
  std::shared_ptr<const Tape> decode = nullptr;     ///< of a generator: the last token's pass beside a cache
};
struct ReferencePlan;

/// Of TrainPlan::gathers_in_flight: nothing makes the CPU wait inside of a pass.
inline constexpr std::uint8_t kAllInFlight = 255;

struct TrainPlan {
  const Tape* train = nullptr;  ///< null: this role only runs log-probs
  const Tape* log_probs = nullptr;
  const Tape* decode = nullptr;  ///< of a generator, whose log_probs is the pass of a whole sequence
  TokenCounts decode_counts;
  /// Whose leaves are the role's parameters.
  const Tape& tape() const { return train != nullptr ? *train : *log_probs; }
  PassCounts train_counts, log_prob_counts;
  bool sharded = true;                         ///< FSDP; false: one device or DDP, plain parameters
  std::uint8_t gathers_in_flight = 0;          ///< gathered units that were freed and still wait (Site::in_flight): FSDP1
  bool records_streams = false;                ///< a freed tensor of a collective waits for NCCL's stream: torch before 2.8
  bool flattened = false;                      ///< FSDP1: `flat` has its units
  bool bucket_views = false;                   ///< DDP: gradients are views of the buckets
  Bytes bucket_cap = 0, first_bucket_cap = 0;  ///< DDP: a bucket that has reached it is full
  bool rebuilds_buckets = true;                ///< DDP: behind the first backward pass
  std::int64_t ranks = 1;                      ///< N
  // one entry per station of the tape (layers: per run); wrapped stations only
  std::vector<UnitBytes> units;
  std::vector<bool> wrapped;  ///< the station is a unit of its own; otherwise its parameters belong to the root
  UnitBytes root;
  FlatUnits flat;
  std::shared_ptr<const ZeroPlan> zero;            ///< DeepSpeed
  std::shared_ptr<const ReferencePlan> reference;  ///< of a preference loss; null: it makes no forward pass
  Bytes resident = 0;                              ///< all parameters on this rank
  std::int64_t frozen_copies = 0;                  ///< of the adapters, in `resident`
  bool base_whole = false;                         ///< packed matrices are no parameters to FSDP2
  std::vector<Bytes> shard_bytes;                  ///< of the tape's leaves, on this rank
  bool states_by_tensor = false;  ///< the optimizer's states and temporaries are many small tensors: they are written one by one
  Bytes state_bytes_of = 0;       ///< with states_by_tensor: states of one byte of a trained parameter
  bool step_every = false;        ///< an optimizer step behind each micro-batch
  bool keep_gradients = false;    ///< zero_grad(set_to_none=False)
  Bytes gradients = 0;            ///< all sharded (or whole) gradients
  Bytes optimizer = 0;            ///< states
  Bytes optimizer_managed = 0;    ///< states in unified memory: paged optimizers
  Bytes optimizer_steps = 0;      ///< step counters on the device (fused)
  Bytes buckets = 0;              ///< DDP: of the reduction, all together
  Bytes step_transient = 0;       ///< what the optimizer step holds above parameters, gradients and states
  Bytes buffers = 0;              ///< inv_freq and its original; tables of layers that no unit of FSDP1 brings
  Bytes host_checkpoint = 0;      ///< a checkpointed layer's input, where it lies on the host until backward
  Bytes full_compute = 0;         ///< all parameters in the compute dtype, unsharded
  Bytes largest_tensor = 0;       ///< largest unsharded parameter in the compute dtype
  std::int64_t micro_batches = 1;
  bool reshard_layers = true, reshard_root = true;
  bool reshard_last = true;        ///< of the last layer, and of the output layer where it is a unit
  bool tied_units = false;         ///< the embedding's and the output layer's units have one parameter and its gradient
  bool norm_with_head = false;     ///< the final norm shares the unit of the output layer
  std::int64_t reshard_ranks = 0;  ///< what is resharded is split over so many ranks until backward; 0: over all
  bool forward_prefetch = false;   ///< a layer gathers the next one's parameters
  BackwardPrefetch backward_prefetch = BackwardPrefetch::pre;
  bool use_orig_params = false;
  bool reentrant = false;             ///< layers are checkpointed so
  bool units_in_checkpoints = false;  ///< FSDP1: and a checkpoint stands around a unit's call
  bool sync_every = true;
  bool offload_parameters = false, offload_optimizer = false, cpu_offload = false;
  bool loss_inside = true;                        ///< the loss is part of the root's forward pass
  StationPlace end_of_head = StationPlace::loss;  ///< its last station then
  bool root_returns_head = false;                 ///< the model returns the very tensor that its output layer's unit returned
  bool replicates = false;  ///< HSDP of FSDP2: what is reduced over the shards is summed over the groups that hold them
  bool trains = true;
  Bytes embedding_part = 0;         ///< tensor parallelism: this rank's part of the embedding's gradient, which is made whole
  bool embedding_collects = false;  ///< frozen, but its output is a leaf that wants a gradient: its unit's hooks run
  bool casts_accumulated = false;   ///< FSDP2: gradients that wait for a later micro-batch are copies in the reduce dtype
  std::vector<int> last_leaf;       ///< of every wrapped station: its last parameter
  int root_last_leaf = -1;
  std::vector<DType> storage;  ///< of every leaf of the tape
};

/// The reference of a preference loss.
struct ReferencePlan {
  TrainPlan plan;  ///< trains nothing
  std::shared_ptr<const Tape> tape;
  bool apart = false;    ///< parameters of its own; false: the policy's, without its adapters
  bool teaches = false;  ///< its pass comes in front of the policy's loss
};

/// Rows of a parameter that a rank of FSDP2 holds: the first axis is cut and padded (torch/distributed/fsdp/_fully_shard/
/// _fsdp_param.py). A packed matrix counts bytes and is cut in pairs of them, its format's; QuantState's tensors are no
/// parameters.
std::int64_t rows_of_shard(const TapeLeaf&, std::int64_t ranks, bool base_whole);

/// REQUIRES: tapes made from train_pass / log_prob_pass of the same trainer. `trains` false: no gradients, no optimizer.
TrainPlan make_plan(const Architecture&, const Trainer&, EngineKind, bool critic, bool trains, const TrainTapes&,
                    std::int64_t micro_batches);

}  // namespace oomplan
