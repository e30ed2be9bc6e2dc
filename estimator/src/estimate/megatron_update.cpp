#include "estimate/megatron_update.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "estimate/communicators.hpp"
#include "estimate/megatron_buckets.hpp"
#include "estimate/timeline.hpp"
#include "job/placement.hpp"

namespace oomplan {
namespace {

class Release {
 public:
  Release(const Catalog& catalog, const Trainer& t) : facts_(catalog.facts()), t_(t) {}
  bool does(const char* fact) const {
    return facts_.find(t_.loop.facts, fact, FactQuery{t_.framework_version, "", {}}).value != 0;
  }

 private:
  const Facts& facts_;
  const Trainer& t_;
};

/// Servers that split no expert get each from the rank that has it (slime/backends/megatron_utils/update_weight/
/// expert_routing.py: _can_route_experts, 0.3.1 and 0.4.0).
bool routes_experts(const Role& actor, const Role& rollout) {
  const Layout& server = rollout.server.layout;
  return actor.trainer.layout.expert_tensor == 1 && server.pipeline == 1 && server.expert > 1 && server.expert == server.tensor;
}

const Role* server_of(const Job& job) {
  const auto found = std::find_if(job.roles.begin(), job.roles.end(), [](const Role& r) { return r.kind == RoleKind::rollout; });
  return found == job.roles.end() ? nullptr : &*found;
}

/// The expert rank that has most of a bucket: beside all of it, it keeps its own.
std::int64_t fullest_expert_rank(const SyncPlan& plan, std::int64_t ranks) {
  std::int64_t fullest = 0;
  Bytes most = 0;
  for (const SyncBucket& bucket : plan.buckets) {
    std::vector<Bytes> of_rank(static_cast<std::size_t>(ranks));
    for (std::size_t i = bucket.first; i < bucket.last; ++i) {
      const SyncStep& step = plan.model->order[i];
      const SyncTensor& tensor = plan.model->tensors[step.tensor];
      if (!tensor.expert) break;
      const auto rank = static_cast<std::size_t>(step.copy / plan.model->experts_of_a_rank);
      if (rank >= of_rank.size()) continue;
      of_rank[rank] += tensor.sent;
      if (of_rank[rank] <= most) continue;
      most = of_rank[rank];
      fullest = static_cast<std::int64_t>(rank);
    }
  }
  return fullest;
}

/// A machine of the servers has no rank of the actor: buckets cannot be mapped there
/// (relax/backends/megatron/weight_update/update_weight_from_tensor.py: connect_rollout_engines, commit 10077e0a).
bool on_other_machines(const Job& job, const Role& actor, const Role& rollout) {
  std::pair<std::int64_t, std::int64_t> ends, server_ends;
  for (const GpuRange& range : placement(job)) {
    if (range.role == actor.name) ends = {range.first, range.end() - 1};
    if (range.role == rollout.name) server_ends = {range.first, range.end() - 1};
  }
  const std::int64_t each = std::max<std::int64_t>(1, job.cluster.gpus_per_node);
  return server_ends.first / each < ends.first / each || server_ends.second / each > ends.second / each;
}

void send_on_shared_gpus(RoleRun& from, RoleRun& to, const Release& release, SyncPoint point, const BucketForm& form,
                         bool apart) {
  const Trainer& t = from.role->trainer;
  SyncModel all = megatron_buckets(*from.role->architecture, t, form);
  if (!form.bridge && release.does("routes_experts") && routes_experts(*from.role, *to.role)) {
    const RoutedExperts routed = routed_experts(*from.role->architecture, t, to.role->server.layout.expert, point.bucket);
    if (routed.staging > 0) all = without_experts(std::move(all));
    point.staging = routed.staging;
    point.staged = routed.sent;
  }
  from.sync_model = std::make_shared<SyncModel>(std::move(all));
  if (form.bridge) {
    point.way = form.exports ? SyncWay::bridge_export : SyncWay::bridge_buckets;
    point.stages = t.layout.pipeline;
    point.expert_ranks = t.layout.expert;
    if (t.layout.expert > 1 && !form.exports)
      point.expert_rank = fullest_expert_rank(plan_sync(*from.sync_model, point), t.layout.expert);
  }
  for (auto& plan : from.send) plan = plan_sync(*from.sync_model, point);
  if (apart) {  // what is broadcast has been converted, and arrives tensor by tensor
    point.way = SyncWay::stage_buckets;
    point.sender = false;
  }
  to.receive = plan_sync(*from.sync_model, point);
}

void send_by_stages(RoleRun& from, RoleRun& to, SyncPoint point, const BucketForm& form) {
  const Trainer& t = from.role->trainer;
  from.stage_sends.assign(static_cast<std::size_t>(t.layout.pipeline), {});
  from.stage_models.clear();
  const SyncPlan* largest = nullptr;
  for (std::int64_t stage = 0; stage < t.layout.pipeline; ++stage) {
    from.stage_models.push_back(std::make_shared<SyncModel>(megatron_stage_buckets(*from.role->architecture, t, stage, form)));
    auto& plans = from.stage_sends[static_cast<std::size_t>(stage)];
    for (const bool first : {true, false}) {
      point.sender = first;
      plans[first ? 0 : 1] = plan_sync(*from.stage_models.back(), point);
    }
    if (largest == nullptr || plans[0]->largest_bucket > largest->largest_bucket) largest = &*plans[0];
  }
  to.receive = *largest;  // stages take turns: a lock
}

}  // namespace

void send_in_buckets(RoleRun& from, RoleRun& to, const Job& job, const Catalog& catalog, SyncPoint point) {
  const Release release(catalog, from.role->trainer);
  point.keeps_parts = release.does("keeps_parts");
  point.keeps_last = release.does("keeps_last_bucket");
  point.keeps_sent = release.does("keeps_sent_bucket");
  point.empties_between = release.does("empties_cache_between_buckets");
  point.converts_first = release.does("converts_before_sending");
  point.keeps_gathered = job.sync.checkpoint_engine;
  point.empties_behind = release.does("empties_cache_behind_update");
  const bool shared = point.way == SyncWay::shared_buckets;
  // NCCL's updates have the framework's own functions, whatever makes the model; the checkpoint engine has Megatron-Bridge's
  // (relax/backends/megatron/weight_update/update_weight_from_distributed.py; relax/distributed/checkpoint_service/backends/
  // device_direct.py, commit e38d4faa; slime/backends/megatron_utils/update_weight/update_weight_from_distributed.py, 0.2.0 to
  // 0.3.0)
  BucketForm form{release.does("gathers_alone"), job.sync.bridge && (shared || job.sync.checkpoint_engine)};
  // an update of adapters alone is less than the first one, which brings the base
  form.merges = from.role->trainer.lora.rank > 0 && to.role->server.lora.slots == 0;
  form.exports = form.bridge && release.does("exports_through_bridge");
  if (form.exports) form.gathers_alone = false;
  if (form.bridge) point.keeps_last = release.does("keeps_last_chunk");
  if (shared)
    send_on_shared_gpus(from, to, release, point, form,
                        !share_gpus(job, *from.role, *to.role) && on_other_machines(job, *from.role, *to.role));
  else
    send_by_stages(from, to, point, form);
}

void resolve_saver(RoleRun& run, const Catalog& catalog) {
  const Trainer& t = run.role->trainer;
  const bool whole = t.loop.pauses_whole && !t.megatron.selective_offload;
  const bool buffers = whole && Release(catalog, t).does("pauses_buffers_with_copies");
  for (MegatronStage& stage : run.megatron) {
    stage.pauses_whole = whole;
    stage.pauses_buffers = !whole || buffers;
    if (t.megatron.weights_on_host == 0 || !t.loop.gathers_buckets) continue;
    const MegatronParameters all =
        megatron_parameters(*run.role->architecture, megatron_chunks(*run.role->architecture, t, stage.stage));
    // aten/src/ATen/core/CachingHostAllocator.h: pinned blocks are powers of two
    Bytes one = 0;
    for (const auto* chunks : {&all.dense_tensors, &all.expert_tensors})
      for (const auto& tensors : *chunks)
        for (const MegatronTensor& tensor : tensors)
          one += static_cast<Bytes>(std::bit_ceil(static_cast<std::uint64_t>(bytes_of(tensor.elements, DType::bf16))));
    stage.host.weights = one * t.megatron.weights_on_host;
  }
}

void resolve_sleeping_groups(ProcessConstants& c, const Job& job, const Role& role, const Catalog& catalog) {
  const Layout& l = role.trainer.layout;
  if (!role.trainer.loop.pauses_whole || l.world() <= 1) return;
  const Release release(catalog, role.trainer);
  const auto bytes = [&](const ProcessGroup& group) { return communicator_bytes(group, job.cluster, catalog); };
  if (release.does("keeps_group_of_all_ranks")) c.kept_nccl = bytes({l.world(), 1, Exchange::none});
  if (l.tensor > 1) c.sending += bytes({l.tensor, 1, Exchange::none});
  if (l.pipeline > 1) c.sending += bytes({l.pipeline, l.world() / l.pipeline, Exchange::none});
  if (l.expert > 1) c.sending += bytes({l.expert, l.expert_tensor, Exchange::none});
  if (l.expert > 1 && l.expert_tensor > 1) c.sending += bytes({l.expert_tensor, 1, Exchange::none});
  const Role* server = server_of(job);
  if (server != nullptr && l.expert > 1 && release.does("routes_experts") && routes_experts(role, *server))
    c.sending += bytes({l.world(), 1, Exchange::all});  // experts are sent from rank to rank
}

}  // namespace oomplan
