#include "estimate/communicators.hpp"

#include <algorithm>
#include <string>

#include "estimate/timeline.hpp"

namespace oomplan {
namespace {

/// Ring attention passes tensors to the next rank; DeepSpeed's, verl's, AReaL's and Megatron's Ulysses send heads to all.
Exchange exchange_of_context(const Role& role) {
  // torchtitan gathers keys and values, and hands their gradients on to the next rank
  const bool ring = role.trainer.kernels == Kernels::torchtitan ||
                    (role.engine == EngineKind::megatron && role.trainer.megatron.context_exchange == ContextExchange::p2p);
  return ring ? Exchange::neighbours : Exchange::all;
}

/// Each stage of the actor has a group of its own with the ranks that get its weights for log-probs
/// (relax/distributed/checkpoint_service/backends/device_direct.py: init_process_groups_for_actor_fwd_ref, redai-infra/Relax
/// e38d4faa).
std::vector<ProcessGroup> groups_of_checkpoint_engine(const Job& job, const Role& role) {
  if (!job.sync.checkpoint_engine) return {};
  const Role* actor = nullptr;
  std::int64_t receivers = 0;
  for (const Role& r : job.roles) {
    if (r.kind == RoleKind::actor) actor = &r;
    if (follows_actor(r)) receivers += r.trainer.layout.world();
  }
  if (actor == nullptr || receivers == 0) return {};
  const ProcessGroup one{receivers + 1, 1, Exchange::none};
  if (role.kind == RoleKind::actor) return {one};
  if (!follows_actor(role)) return {};
  return std::vector<ProcessGroup>(static_cast<std::size_t>(actor->trainer.layout.pipeline), one);
}

}  // namespace

std::vector<ProcessGroup> process_groups(const Job& job, const Role& role) {
  const Trainer& t = role.trainer;
  const Layout& l = t.layout;
  // a generator's processes are its copies: one has all GPUs over which its layers lie
  const std::int64_t world = role.kind == RoleKind::generator ? l.data : l.world();
  if (world <= 1) return {};
  std::vector<ProcessGroup> groups{{world, 1, Exchange::none}};
  // DeepSpeed's barriers are the default group's; it shards over a clone of it, or over a group of its own with Ulysses
  // (deepspeed/utils/groups.py _clone_world_group, runtime/sequence_parallel/parallel_state_sp.py, runtime/zero/stage3.py, 0.16
  // to 0.19)
  if (role.engine == EngineKind::deepspeed) groups.push_back({world, 1, Exchange::none});
  if (l.context > 1) groups.push_back({l.context, l.tensor, exchange_of_context(role)});
  if (l.tensor > 1) groups.push_back({l.tensor, 1, Exchange::none});
  if (l.pipeline > 1 && role.kind != RoleKind::generator)
    groups.push_back({l.pipeline, world / l.pipeline, Exchange::neighbours});
  // with DeepEP rows do not go through NCCL, which only hands out its handles, over all ranks that share or split the experts
  const bool flex = role.engine == EngineKind::megatron && t.megatron.dispatcher == TokenDispatcher::flex;
  if (flex && l.expert * l.expert_tensor > 1)
    groups.push_back({l.expert * l.expert_tensor, 1, Exchange::none});
  else if (l.expert > 1)
    groups.push_back({l.expert, l.expert_tensor, Exchange::all});
  if (t.replicas > 1) groups.push_back({t.replicas, world / t.replicas, Exchange::none});
  if (job.sync.by == SyncBy::nccl && role.kind == RoleKind::actor) groups.push_back({world, 1, Exchange::none});
  for (const ProcessGroup& group : groups_of_checkpoint_engine(job, role)) groups.push_back(group);
  return groups;
}

Bytes communicator_bytes(const ProcessGroup& group, const Cluster& cluster, const Catalog& catalog) {
  const std::int64_t here = std::clamp<std::int64_t>(cluster.gpus_per_node / group.stride, 1, group.size);
  const bool remote = here < group.size;
  FactQuery q{"", catalog.gpu(cluster.gpu).sm, {}};
  const auto fact = [&](std::string_view name) { return static_cast<Bytes>(catalog.facts().find("nccl", name, q).value); };
  q.conditions["nodes"] = remote ? "2" : "1";
  // a ring that crosses machines has buffers for its two neighbours like one inside of a machine
  q.conditions["gpus"] = std::to_string(remote ? std::max<std::int64_t>(here, 2) : here);
  // rings, trees and NVLink SHARP's buffers come with the first collective of their kind, those of an exchange with the first one
  if (group.exchange == Exchange::none) return fact("collectives_bytes");
  Bytes bytes = fact("communicator_bytes");
  const std::int64_t peers = group.exchange == Exchange::all ? here - 1 : std::min<std::int64_t>(here - 1, 2);
  bytes += peers * fact("p2p_channels") * fact("ring_channel_bytes");
  if (remote) bytes += 2 * fact("p2p_pool_bytes");
  return bytes;
}

}  // namespace oomplan
