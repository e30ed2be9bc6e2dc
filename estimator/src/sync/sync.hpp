// Weight updates from a trainer to its servers: what both sides hold while new weights travel.
//
// A SyncModel lists the tensors in the order in which they are sent, made once per (architecture, number formats). plan_sync()
// packs them into buckets once and keeps what that does to each side as a Span, because a packing ignores the borders of layers
// and costs a few nanoseconds per tensor. With PeakRecorder, record_send and record_receive append that Span; with ProgramWriter
// they write every gather, bucket and free.
//
// Legend: W bucket, T largest full tensor, N shards of a parameter.
//   AReaL, NCCL, trainer rank 0:  pending W + filling W + T   (areal/engine/fsdp_engine.py, 1.0.3 and later; one W before)
//   AReaL, NCCL, other ranks:     2 T in the storage dtype: the next is gathered while the last is still referenced
//   SGLang, NCCL:                 W, all tensors of a bucket (sglang/srt/model_executor/model_runner.py, 0.5.10); 2 W flattened
//   vLLM, NCCL under AReaL:       one tensor after another
//   verl, colocated (IPC):        W on the trainer + the gathered tensor; views on the server (verl 0.9, engine_workers.py)
//   verl, NCCL:                   2 W on both sides (verl/checkpoint_engine, 0.9)
//   disk:                         T on every trainer rank, the whole model in host memory of rank 0
//   LoRA, NCCL under AReaL:       the adapters alone go; vLLM keeps a bucket, then builds the adapter in host memory
//                                 (areal/engine/vllm_ext/vllm_worker_extension.py, 1.0.4)
//   LoRA, verl on shared GPUs:    what is gathered around the adapters goes first (Summon); W on the trainer (0.7.1 on), copies
//   of
//                                 the adapters on vLLM (0.9; verl/workers/rollout/vllm_rollout/utils.py)
//   LoRA, disk under AReaL:       the state dict of everything is gathered, the adapters are written (fsdp_engine.py, to 2.0.0)
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <oomplan/job.hpp>
#include <oomplan/program.hpp>

#include "catalog/architecture.hpp"
#include "catalog/facts.hpp"
#include "layers/megatron_lora.hpp"
#include "layers/tape.hpp"

namespace oomplan {

/// What the checkpoint's tensors are, once made of a parameter of Megatron: parts of it, copies, or parts of one copy.
enum class Forms : std::uint8_t { views, copies, of_one_copy };

struct SyncTensor {
  std::string name;
  std::vector<std::int64_t> shape;
  Bytes stored = 0;  ///< gathered, in the dtype of the trainer's parameters
  Bytes sent = 0;    ///< in the dtype that travels
  Bytes beside = 0;  ///< what gathering it over two axes of ranks holds beside the result until that is there
  // of Megatron's parameters, in ways by buckets of them
  Bytes part = 0;       ///< what a rank has of it, where ranks share it; 0: all of it
  Bytes counted = 0;    ///< what it takes of a bucket's limit: of what all ranks have, as much as if they shared it
  Bytes converted = 0;  ///< copies that the checkpoint's form takes; the rest of it are views
  bool expert = false;
  // ... as Megatron-Bridge makes the checkpoint's tensors of them
  std::vector<Bytes> forms = {};  ///< the tensors, in their order; none: one, which is what was gathered
  Forms are = Forms::views;       ///< what `forms` are
  Bytes converting = 0;           ///< what is beside them until they are there
  bool paired = false;            ///< goes together with the other one of its layer
  Bytes adapter = 0;              ///< of LoRA that is merged into it first: the pair of matrices, in fp32
};
/// One tensor of the order: which row, and its layer and expert.
struct SyncStep {
  std::uint32_t tensor = 0;
  std::int32_t layer = 0, copy = 0;
};
struct SyncModel {
  DType storage = DType::fp32, wire = DType::bf16;
  std::vector<SyncTensor> tensors;
  std::vector<SyncStep> order;
  Bytes largest_stored = 0, largest_sent = 0, total_sent = 0;
  // through Megatron-Bridge
  std::vector<std::int32_t> stages;  ///< of each layer
  std::int64_t experts_of_a_rank = 1;
};
/// `fused_experts`: the trainer keeps all experts of a matrix as one tensor (transformers 5), so it is gathered whole.
SyncModel sync_model(const Architecture&, DType storage, DType wire, bool fused_experts);
/// Parameters that tensor parallelism splits over `ranks` are gathered over the shards first, then over these ranks, and what
/// arrives is put in order by a copy (DTensor.full_tensor: torch/distributed/tensor/placement_types.py, 2.13).
void gather_twice(SyncModel&, std::int64_t ranks);
/// What a tape's role trains and nothing else: the adapters of LoRA, in the order of the modules.
SyncModel trained_model(const Tape&, DType storage, DType wire);
/// The adapters that AReaL's Megatron engine sends.
SyncModel megatron_adapters_model(const Architecture&, const MegatronAdapters&, DType);
/// The tensors of `first`, then those of `second`, in the formats of `first`: what the state dict of everything holds.
SyncModel joined(SyncModel first, const SyncModel& second);

enum class SyncWay : std::uint8_t {
  none,
  buckets,        ///< NCCL: a bucket is filled, then broadcast
  two_buckets,    ///< NCCL: one bucket is broadcast while the next is filled
  double_buffer,  ///< NCCL: two buffers of the bucket's size on both sides (verl)
  ipc,            ///< same GPU: one buffer, opened by the server
  disk,
  shared_buckets,  ///< Megatron, same GPU: every rank gathers a bucket of parameters and puts it in one tensor
  stage_buckets,   ///< Megatron, NCCL: a stage's first rank gathers a bucket and broadcasts it
  bridge_buckets,  ///< Relax through Megatron-Bridge: every rank, experts in front; they are converted where they are
  bridge_export,   ///< slime through Megatron-Bridge: parameter by parameter
  flat_buckets,    ///< slime's FSDP backend: every rank gathers a bucket, which goes as one tensor on the same GPUs
};
struct SyncPoint {
  SyncWay way = SyncWay::none;
  EngineKind server = EngineKind::sglang;
  Bytes bucket = kGiB;
  bool sender = true;            ///< trainer rank 0 (of a pipeline stage); other ranks only take part in the gathers
  bool casts = false;            ///< each full tensor is cast to the wire's dtype while the gathered one still lives
  bool flattened = false;        ///< SGLang's flattened_bucket
  bool adapters = false;         ///< of LoRA: vLLM keeps all of a bucket before it makes an adapter of them
  bool from_host = false;        ///< what is sent lies on the host: the buffer alone is on the device
  bool gathers_to_host = false;  ///< ... where it was gathered tensor by tensor (FSDP2)
  bool has_buffer = true;        ///< of `from_host`: false: it goes straight to the server's process
  int copies = 0;                ///< of `from_host`: how often the server copies all of it, up to twice: what arrives, and that
  /// The sender's allocator has expandable segments, but for the weight update.
  bool switches_segments = false;
  bool empties_first = false;  ///< the sender's cache is emptied before a server that sleeps beside it wakes
  // Megatron's buckets
  bool keeps_parts = false;            ///< what a rank had of a bucket stays until that is sent
  bool keeps_last = false;             ///< what was sent last is a name until the next bucket is there
  bool keeps_sent = false;             ///< the one tensor that was sent last stays until the next one has been sent (Relax)
  bool empties_between = false;        ///< the cache is emptied behind every bucket
  bool converts_first = true;          ///< a bucket is closed by a parameter that has been converted
  bool empties_behind = false;         ///< the cache is emptied behind the update
  bool keeps_gathered = false;         ///< what was gathered stays with its bucket: it goes to roles of Megatron, too
  bool flattens = true;                ///< a bucket is put in one tensor, which the server maps; else it is broadcast as it is
  std::int64_t stage = 0, stages = 1;  ///< of the rank that sends through Megatron-Bridge
  std::int64_t expert_rank = 0, expert_ranks = 1;
  Bytes staging = 0, staged = 0;  ///< experts that go to the servers' ranks alone: buffers of a rank, and what of them is sent
};
/// How a framework sends: the way and its settings from models/engines. Throws InputError.
SyncPoint sync_point(const Facts&, const TrainingLoop&, std::string_view version, SyncBy, Bytes bucket, EngineKind server,
                     bool same_gpu);
/// Does the trainer of this framework keep fused experts?
bool fused_experts(const Facts&, const TrainingLoop&, std::string_view version);
/// The dtype that travels: the compute dtype where the framework casts, else that of the parameters (verl's FSDP: fp32 by
/// default).
DType wire_dtype(const Facts&, const TrainingLoop&, std::string_view version, DType storage, DType compute);

/// A bucket: steps [first, last) of the order.
struct SyncBucket {
  std::size_t first = 0, last = 0;
  Bytes bytes = 0;
};
struct SyncPlan {
  const SyncModel* model = nullptr;  ///< must outlive the plan
  SyncPoint point;
  std::vector<SyncBucket> buckets;
  Bytes largest_bucket = 0;
  Span send, receive;
};
SyncPlan plan_sync(const SyncModel&, const SyncPoint&);

void record_send(PeakRecorder&, const SyncPlan&);
void record_send(ProgramWriter&, const SyncPlan&);
void record_receive(PeakRecorder&, const SyncPlan&);
void record_receive(ProgramWriter&, const SyncPlan&);

}  // namespace oomplan
