// estimate_quick(): every class of GPUs folded, and what it means for GPUs, hosts and servers.
#include <algorithm>

#include <fmt/format.h>

#include "estimate/assemble.hpp"
#include "estimate/expert_shards.hpp"
#include "estimate/outliers.hpp"
#include "estimate/packing.hpp"
#include "estimate/routing.hpp"
#include "inference/in_service.hpp"
#include "units/sizes.hpp"

namespace oomplan {
namespace {

/// A trainer and a server on one GPU: while weights move, both are active and their interleaving is not known.
bool meets_server(const Job& job, const GpuClass& c) {
  const auto serves = [&](const SeatOnGpu& s) { return job.roles[s.role].serves(); };
  return std::any_of(c.seats.begin(), c.seats.end(), serves) && !std::all_of(c.seats.begin(), c.seats.end(), serves);
}

/// A server that maps a trainer's buckets has nothing of its own beside them.
bool maps_buckets(const Job& job) {
  const auto sends = [](const Role& r) {
    return (r.kind == RoleKind::actor || r.kind == RoleKind::trainer) &&
           (r.trainer.loop.gathers_buckets || r.trainer.loop.flat_buckets);
  };
  return job.sync.by == SyncBy::ipc && std::any_of(job.roles.begin(), job.roles.end(), sends);
}

GpuAnswer answer_of(const Job& job, const GpuClass& c, const ClassFold& fold, const Gpu& gpu) {
  GpuAnswer a;
  a.ranks = ranks_text(job, c);
  a.gpus = c.gpus;
  a.gpu = gpu.name;
  a.usable = gpu.usable - job.cluster.others;
  for (const auto& f : fold.phases) {
    Moment m;
    m.phase = job.roles[f.role].name + "." + std::string(phase_word(f.phase));
    m.role = job.roles[f.role].name;
    m.usage.allocated = f.allocated;
    m.usage.reserved = f.reserved;
    m.usage.device = f.device;
    m.usage.capacity_needed = f.needed;
    m.bound = meets_server(job, c) && !maps_buckets(job) &&
              (f.phase == PhaseKind::receive_weights || f.phase == PhaseKind::send_weights);
    a.phases.push_back(std::move(m));
  }
  for (std::size_t i = 0; i < a.phases.size(); ++i)
    if (a.phases[i].usage.capacity_needed > a.phases[a.worst].usage.capacity_needed) a.worst = i;
  return a;
}

/// Hosts: every GPU of a node runs its class's phases at the same time.
std::vector<HostAnswer> hosts_of(const Job& job, const std::vector<GpuClass>& classes, const std::vector<ClassFold>& folds) {
  std::vector<HostAnswer> out;
  const std::int64_t per_node = std::max<std::int64_t>(1, job.cluster.gpus_per_node);
  std::vector<std::vector<std::int64_t>> counts;  // node -> class -> GPUs
  for (std::size_t c = 0; c < classes.size(); ++c)
    for (const auto gpu : classes[c].gpus) {
      const auto node = static_cast<std::size_t>(gpu / per_node);
      if (counts.size() <= node) counts.resize(node + 1);
      counts[node].resize(classes.size());
      ++counts[node][c];
    }
  for (std::size_t node = 0; node < counts.size(); ++node) {
    counts[node].resize(classes.size());
    const auto same = node > 0 && counts[node] == counts[node - 1];
    if (same) {
      const auto first = out.back().nodes.substr(0, out.back().nodes.find('-'));
      out.back().nodes = first + "-" + std::to_string(node);
      continue;
    }
    HostAnswer h;
    h.nodes = std::to_string(node);
    h.usable = job.cluster.host_memory;
    for (std::size_t c = 0; c < folds.size(); ++c)
      for (const auto& f : folds[c].phases) {
        if (counts[node][c] == 0) continue;
        const std::string label = job.roles[f.role].name + "." + std::string(phase_word(f.phase));
        const auto at = std::find_if(h.phases.begin(), h.phases.end(), [&](const auto& p) { return p.first == label; });
        if (at == h.phases.end())
          h.phases.emplace_back(label, f.host * counts[node][c]);
        else
          at->second += f.host * counts[node][c];
      }
    for (std::size_t i = 0; i < h.phases.size(); ++i)
      if (h.phases[i].second > h.phases[h.worst].second) h.worst = i;
    out.push_back(std::move(h));
  }
  return out;
}

std::vector<ServerAnswer> servers_of(const Job& job, const std::vector<ClassFold>& folds, const std::vector<RoleRun>& runs) {
  std::vector<ServerAnswer> out;
  for (std::size_t i = 0; i < job.roles.size(); ++i) {
    const Role& role = job.roles[i];
    if (!role.serves()) continue;
    const ServerPlan* smallest = nullptr;  // blocks are the minimum over ranks
    for (const auto& f : folds)
      if (f.servers[i] && (smallest == nullptr || f.servers[i]->kv_tokens < smallest->kv_tokens)) smallest = &*f.servers[i];
    if (smallest == nullptr) continue;
    const std::int64_t replicas = role.cache_groups();
    const std::int64_t tokens = job.prompt_tokens + job.response_tokens;
    const std::int64_t asked = ceil_div(role.server.concurrency, replicas);
    out.push_back(describe(*smallest, role.name, asked, tokens));
    for (const auto& r : runs)
      if (r.index == i)
        out.back().in_service =
            in_service(r.model, r.facts, r.point, *smallest,
                       {asked, job.prompt_tokens, job.response_tokens, job.samples_per_prompt, role.server.share_prompts});
  }
  return out;
}

/// What waits or stays longer than a reader would expect.
template <class Say>
void note_held(const RoleRun& r, Say&& note) {
  if (r.plan.zero != nullptr && r.plan.zero->saved_experts > 0)
    note(r.role->name + ": ZeRO 3 keeps the gathered experts of all layers from their forward to their backward pass, " +
         bytes_text(r.plan.zero->saved_experts) + ": autograd saves views of them, which hold what DeepSpeed releases" +
         (r.role->trainer.lora.rank == 0 ? "; with recompute: full it keeps one layer's at a time" : ""));
  if (!r.role->serves() && r.tapes.train != nullptr)
    if (std::string room = expert_room(*r.role, r.plan, *r.tapes.train); !room.empty()) note(std::move(room));
  if (r.plan.gathers_in_flight == kAllInFlight)
    note(r.role->name +
         ": limit_all_gathers is off: every unit that a pass frees is taken to wait for the GPU until the pass ends; it is "
         "fewer where the GPU keeps up with the CPU, at least one");
}

/// Phases in which the cache is emptied before every collective, of the GPUs that have least of it left.
template <class Say>
void note_short_of_cache(const Job& job, const std::vector<GpuAnswer>& gpus, Say&& note) {
  for (const Role& role : job.roles) {
    const Bytes least = role.trainer.empty_cache_below;
    if (role.serves() || least == 0) continue;
    std::string phases;
    Bytes left = least;
    for (const GpuAnswer& gpu : gpus)
      for (const auto& phase : gpu.phases) {
        const Bytes free = gpu.usable - phase.usage.capacity_needed;
        if (phase.role != role.name || free < 0 || free >= least) continue;
        left = std::min(left, free);
        if (phases.find(phase.phase) == std::string::npos) phases += (phases.empty() ? "" : ", ") + phase.phase;
      }
    if (!phases.empty())
      note(
          fmt::format("{}: at most {} of a GPU are free, less than {}: the cache is emptied before every collective, which takes "
                      "time",
                      phases, bytes_text(left), bytes_text(least)));
  }
}

/// What was assumed because the job does not say it, and what has no tensor and no measurement.
void note_assumptions(const Job& job, Assembled& a) {
  const auto note = [&](std::string text) { a.estimate.notes.push_back({Note::Level::info, {}, std::move(text)}); };
  for (const auto& r : a.runs) {
    if (r.role->serves() || !r.trains || r.role->trainer.micro_batches > 0 || job.sequences_per_step > 0) continue;
    note(r.role->name + ": the number of micro-batches follows from sequences_per_step, which is not stated; " +
         std::to_string(r.plan.micro_batches) + (r.plan.micro_batches == 1 ? " is assumed" : " are assumed"));
  }
  for (const auto& r : a.runs) {
    if (!r.role->serves())
      for (std::string assumed : {routing_assumption(*r.role), outlier_assumption(*r.role),
                                  r.trains ? packing_assumption(*r.role, job.prompt_tokens + job.response_tokens) : ""})
        if (!assumed.empty()) note(std::move(assumed));
    note_held(r, note);
    if (!r.role->serves() && r.trains && r.role->trainer.compile)
      note(r.role->name +
           ": what torch.compile keeps and allocates is that of PyTorch 2.13's graphs for an H100; other releases may "
           "divide or order them differently");
  }
  note_short_of_cache(job, a.estimate.gpus, note);
  for (const auto& c : a.classes)
    if (meets_server(job, c) && !maps_buckets(job)) {
      note("where a trainer and a server move weights at the same time on one GPU, the sum of both is an upper bound (<=)");
      break;
    }
}

}  // namespace

bool Estimate::fits() const {
  return std::all_of(gpus.begin(), gpus.end(), [](const GpuAnswer& g) { return g.fits(); }) &&
         std::none_of(servers.begin(), servers.end(), [](const ServerAnswer& s) { return s.refused; }) &&
         std::all_of(hosts.begin(), hosts.end(), [](const HostAnswer& h) {
           return h.usable == 0 || h.phases.empty() || h.phases[h.worst].second <= h.usable;
         });
}

Assembled assemble(const Job& job, const Catalog& catalog, TapeStore& store) {
  Assembled a;
  a.runs = resolve_roles(job, catalog, store);
  a.timeline = timeline_of(job);
  a.classes = gpu_classes(job, a.runs);
  for (const auto& c : a.classes) a.folds.push_back(fold_class(job, a.runs, c, a.timeline));
  const Gpu& gpu = catalog.gpu(job.cluster.gpu);
  for (std::size_t c = 0; c < a.classes.size(); ++c) a.estimate.gpus.push_back(answer_of(job, a.classes[c], a.folds[c], gpu));
  a.estimate.hosts = hosts_of(job, a.classes, a.folds);
  a.estimate.servers = servers_of(job, a.folds, a.runs);
  note_assumptions(job, a);
  return a;
}

void worst_first(Estimate& e, const Job& job) {
  std::stable_sort(e.gpus.begin(), e.gpus.end(), [](const GpuAnswer& x, const GpuAnswer& y) {
    const auto short_of = [](const GpuAnswer& g) {
      return g.phases.empty() ? -g.usable : g.phases[g.worst].usage.capacity_needed - g.usable;
    };
    return short_of(x) > short_of(y);
  });
  // The verdict rests on the fullest GPU's worst moment: so does the evidence.
  if (e.gpus.empty() || e.gpus.front().phases.empty()) return;
  const GpuAnswer& g = e.gpus.front();
  if (const Role* role = job.role(g.phases[g.worst].role)) e.evidence = evidence_for(*role);
}

Estimate estimate_quick(const Job& job, const Catalog* catalog) {
  Estimate e = assemble(job, catalog != nullptr ? *catalog : Catalog::builtin(), TapeStore::shared()).estimate;
  worst_first(e, job);
  return e;
}

}  // namespace oomplan
