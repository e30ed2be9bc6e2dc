// The search judges trainers and servers apart. Put together, their verdicts are the estimate of the whole job, to the byte.
#include <random>

#include "estimate/assemble.hpp"
#include "estimate_jobs.hpp"
#include "job/validate.hpp"
#include "search/server_side.hpp"
#include "search/trainer_side.hpp"

using namespace oomplan;

namespace {

/// The most that a GPU of the role's needs.
Bytes need_of(const Job& job, const Estimate& e, const Role& role) {
  Bytes most = 0;
  for (const auto& g : e.gpus)
    for (const auto& m : g.phases)
      if (const Role* r = job.role(m.role); r == &role || share_gpus(job, *r, role))
        most = std::max(most, m.usage.capacity_needed);
  return most;
}

}  // namespace

TEST_CASE("verdicts of trainers and servers, combined, equal the estimate of the job at two hundred random points") {
  std::mt19937 random(7);
  const auto pick = [&](const auto& items) {
    return items[std::uniform_int_distribution<std::size_t>(0, items.size() - 1)(random)];
  };
  int compared = 0, together = 0;
  for (const char* name : {"grpo.yaml", "areal_single_gpu.yaml", "verl_colocated_8b.yaml", "verl_long_context.yaml",
                           "serving.yaml", "sft_torch.yaml", "areal, critic", "areal, cpu offload policy", "verl, apart",
                           "verl, shared, sleep 1", "verl, shared, sleep 2", "verl, shared, never asleep",
                           "verl, ref in the actor's process", "verl, critic, tensor parallel server", "serving, stages"}) {
    INFO(std::string(name));
    const auto jobs = all_jobs();
    const Job job = job_of(std::find_if(jobs.begin(), jobs.end(), [&](const NamedJob& j) { return j.name == name; })->text);
    Space space;
    space.allow = Effect::numerics;
    TapeStore store;
    const auto runs = resolve_roles(job, Catalog::builtin(), store);
    TrainerSide trainers(job, space, Catalog::builtin(), store, runs);
    const ServerSide servers(job, Catalog::builtin(), runs);
    const Role* trainer = trainers.empty() ? nullptr : &trainers.leader();
    const Role* server = servers.empty() ? nullptr : &servers.role();
    const bool shared = trainer != nullptr && server != nullptr && share_gpus(job, *trainer, *server);
    const Axes axes = axes_of(job, space, trainer, server, shared);
    std::vector<TrainerPoint> points;
    std::vector<ServerChoice> choices;
    if (trainer != nullptr) points = trainer_points(axes, *trainer, trainer->layout().world());
    if (server != nullptr) choices = server_choices(axes, *server, server->layout().world(), job.cluster.gpus_per_node);
    for (int k = 0; k < 16; ++k) {
      Job changed = job;
      TrainerVerdict tv;
      ServerVerdict sv;
      if (trainer != nullptr) {
        tv = trainers.judge(pick(points));
        if (!tv.possible) continue;
        trainers.put(tv.point, changed);
      }
      if (server != nullptr) {
        sv = servers.judge(pick(choices), shared ? tv.visits.front().held : 0,
                           trainer != nullptr ? trainers.receive(tv.point.storage) : nullptr);
        for (auto& r : changed.roles)
          if (r.serves()) ServerSide::put(sv.choice, r.server);
      }
      if (!problems(changed, Catalog::builtin()).empty()) continue;
      const Estimate e = assemble(changed, Catalog::builtin(), store).estimate;
      ++compared;
      if (server != nullptr) CHECK(e.servers.at(0).refused == (sv.refusal != ServerRefusal::none));
      if (shared) {
        ++together;
        CHECK(need_together(tv.visits, sv) == need_of(changed, e, *changed.role(trainer->name)));
        continue;
      }
      if (trainer != nullptr) CHECK(tv.need == need_of(changed, e, *changed.role(trainer->name)));
      if (server != nullptr) CHECK(sv.need == need_of(changed, e, *changed.role(server->name)));
    }
  }
  CHECK(compared >= 150);
  CHECK(together >= 60);
}
