// A role, resolved: its tapes and plans, its server's plan, and the constants of its process. Made once per job from strings and
// facts; everything after it is arithmetic.
#pragma once
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <oomplan/oomplan.hpp>

#include "catalog/catalog.hpp"
#include "estimate/tape_store.hpp"
#include "inference/server.hpp"
#include "sync/sync.hpp"
#include "training/megatron_plan.hpp"
#include "training/plan.hpp"

namespace oomplan {

/// What has no tensor in a training process.
struct ProcessConstants {
  Bytes context = 0;    ///< CUDA context and loaded kernels
  Bytes libraries = 0;  ///< of that: what a trainer loads
  Bytes nccl = 0;       ///< communicators
  Bytes deepep = 0;     ///< DeepEP's buffers
  Bytes workspace = 0;  ///< cuBLAS: of one thread; the forward pass has one, autograd another
  Bytes kept_nccl = 0;  ///< of `nccl`: what stays where communicators are destroyed while the process sleeps
  Bytes sending = 0;    ///< communicators that a weight update of a process that sleeps makes for itself
};

/// Passes of one role as they were folded before. They depend on the tapes, the token counts and the sharding, not on the
/// optimizer's form, on what is offloaded between phases, nor on how the model is loaded.
struct PassSpans {
  std::optional<Span> forward, log_probs;
  std::array<std::optional<Span>, 4> backward;  ///< by first micro-batch + 2 * whether gradients are reduced
};

struct RoleRun {
  const Role* role = nullptr;
  std::size_t index = 0;
  // training engines
  const Gpu* gpu = nullptr;  ///< the catalog's, which outlives the run
  bool trains = false, critic = false;
  TrainTapes tapes;
  TrainPlan plan;
  std::vector<MegatronStage> megatron;  ///< by pipeline stage; empty for other engines
  std::vector<RoleRun> parts;           ///< of a generator whose layers lie on several GPUs: what each has
  Bytes full_storage = 0;               ///< all parameters unsharded, as stored
  Bytes held_pixels = 0;                ///< of images that no running micro-batch has, on the device while a phase runs
  bool loads_on_every_host = false;     ///< every rank makes the whole model in host memory before it is sharded
  bool loads_full = false;              ///< every rank loads the whole model before it is sharded
  PassSpans* passes = nullptr;          ///< where a fold keeps its passes for the next one with equal passes; null: in itself
  ProcessConstants constants;
  // servers
  ServerModel model;
  ServerFacts facts;
  ServerPoint point;
  // weight updates: of the role that sends and of the roles that receive
  std::shared_ptr<const SyncModel> sync_model;  ///< all that the role saves or sends
  std::shared_ptr<const SyncModel> adapters;    ///< of LoRA, alone; null: everything is trained
  /// [0] rank 0 of the trainer, [1] the others. save: the weights as files, tensor by tensor.
  std::array<std::optional<SyncPlan>, 2> send, save;
  /// Where every stage of a pipeline sends what is its own: the same by stage, and what that is.
  std::vector<std::array<std::optional<SyncPlan>, 2>> stage_sends;
  std::vector<std::shared_ptr<const SyncModel>> stage_models;
  std::optional<SyncPlan> receive;
  std::optional<Summon> summon;          ///< adapters are read to the host before they are sent
  bool empties_behind_training = false;  ///< the cache, before a server beside it wakes
};

/// Why a trainer's pass through its model's tower is not described, and what can be asked for instead; "" when it is.
std::string undescribed_tower(const Role&);
/// Micro-batches of one training step on one data-parallel rank: as given, or from the batch.
std::int64_t micro_batches_of(const Job&, const Trainer&);

/// Tapes and plan of a run whose role's Trainer has changed; constants, facts and weight updates stay. For searches: no strings.
/// REQUIRES: the run's gpu is set.
void update_trainer(RoleRun&, const Job&, TapeStore&);
/// Constants of a training process of this world size.
ProcessConstants process_constants(const Job&, const Role&, const Catalog&);

/// All roles of the job. Throws InputError for what cannot be estimated yet, by name.
std::vector<RoleRun> resolve_roles(const Job&, const Catalog&, TapeStore&);

/// The accuracy table's figures for a role's engine (models/accuracy.json, written by benchmarks/accuracy).
Evidence evidence_for(const Role&);

}  // namespace oomplan
