#include "estimate/timeline.hpp"

#include <algorithm>

#include "catalog/facts.hpp"
#include "job/placement.hpp"

namespace oomplan {

bool learns(const Role& r) { return r.kind == RoleKind::actor || r.kind == RoleKind::critic || r.kind == RoleKind::trainer; }

bool follows_actor(const Role& r) { return r.kind == RoleKind::reference && r.name != "ref"; }

std::string_view phase_word(PhaseKind p) {
  constexpr std::string_view kWords[] = {"load",      "start",  "generate", "sleep",    "wake",      "receive_weights",
                                         "log_probs", "values", "forward",  "backward", "optimizer", "send_weights",
                                         "save"};
  return kWords[static_cast<std::size_t>(p)];
}

bool share_gpus(const Job& job, const Role& a, const Role& b) {
  const Role* x = anchor(job, a);
  if (x == nullptr || x != anchor(job, b)) return false;
  const std::int64_t from_a = a.beside.empty() ? 0 : a.first_gpu, from_b = b.beside.empty() ? 0 : b.first_gpu;
  return from_a < from_b + b.layout().world() && from_b < from_a + a.layout().world();
}

namespace {

bool at_once(const Role& role) { return role.trainer.loop.serves_at_once; }

/// When a server starts: 0 in front of the trainers, 1 behind them, 2 with the rollout's, 3 last.
/// verl: a reward model's starts in front of the rollout's, and sleeps when that one measures what is free; in 0.7.0 also in
/// front of the trainer (verl/trainer/ppo/ray_trainer.py init_workers, 0.7.0 to 0.10; verl/trainer/ppo/v1/trainer_base.py, 0.9).
/// Relax: a teacher's starts first, a reward model's last (relax/core/controller.py: register_all_serve).
int turn_to_start(const Role& role) {
  const std::string_view release = role.trainer.framework_version;
  if (at_once(role)) return role.kind == RoleKind::teacher ? 0 : role.kind == RoleKind::reward ? 3 : 2;
  if (role.kind != RoleKind::reward) return 2;
  return !release.empty() && compare_versions(release, "0.7.1") < 0 ? 0 : 1;
}

bool takes_weights(const Role& server) { return server.kind != RoleKind::teacher && server.kind != RoleKind::reward; }

std::vector<std::size_t> in_pass_order(const Job& job, std::vector<std::size_t> trainers) {
  const auto turn = [&](std::size_t i) {
    return std::find(job.pass_order.begin(), job.pass_order.end(), job.roles[i].kind) - job.pass_order.begin();
  };
  std::stable_sort(trainers.begin(), trainers.end(), [&](std::size_t a, std::size_t b) { return turn(a) < turn(b); });
  return trainers;
}

}  // namespace

Timeline timeline_of(const Job& job) {
  Timeline t;
  std::vector<std::size_t> servers, trainers;
  for (std::size_t i = 0; i < job.roles.size(); ++i) (job.roles[i].serves() ? servers : trainers).push_back(i);
  const auto naps = [&](std::size_t server) {
    if (job.roles[server].server.sleep_level <= 0) return false;
    for (const auto i : trainers)
      if (share_gpus(job, job.roles[server], job.roles[i])) return true;
    return false;
  };
  // AgileRL starts its engine before it loads what it trains, unless bitsandbytes has to pack that on the GPU
  // (agilerl/algorithms/core/base.py _initialize_colocated_vllm_and_actors, 2.8)
  const auto waits = [&](std::size_t trainer) {
    const Trainer& trains = job.roles[trainer].trainer;
    return trains.loop.loads_behind_servers && trains.lora.base.format == BaseFormat::full;
  };
  const bool server_first = job.servers_start_first || std::any_of(trainers.begin(), trainers.end(), waits);
  const auto load_trainers = [&] {
    for (const auto i : trainers) t.init.push_back({i, StepKind::load});
  };
  const auto start_servers = [&](int turn) {
    for (const auto i : servers) {
      if (turn_to_start(job.roles[i]) != turn) continue;
      t.init.push_back({i, StepKind::load});
      t.init.push_back({i, StepKind::start});
      if (naps(i)) t.init.push_back({i, StepKind::sleep});
    }
  };
  start_servers(0);
  if (!server_first) load_trainers();
  for (const int turn : {1, 2, 3}) start_servers(turn);
  if (server_first) load_trainers();
  auto& s = t.iteration;
  const auto wake = [&](std::size_t i) {
    if (naps(i)) s.push_back({i, StepKind::wake_weights});
    if (naps(i)) s.push_back({i, StepKind::wake_cache});
  };
  // Relax: they wake together, and sleep when all is generated and scored (relax/backends/megatron/actor.py: train,
  // update_weights)
  // a trainer without a rollout of its own is awake until it asks them (relax/engine/sft/predict/runner.py)
  const auto lay_trainers_down = [&] {
    for (const auto i : trainers)
      if (job.roles[i].kind == RoleKind::trainer && std::any_of(servers.begin(), servers.end(), naps))
        s.push_back({i, StepKind::sleep});
  };
  const bool together = std::any_of(servers.begin(), servers.end(), [&](std::size_t i) { return at_once(job.roles[i]); });
  lay_trainers_down();
  if (together) std::for_each(servers.begin(), servers.end(), wake);
  for (const auto i : servers) {
    if (!together) wake(i);
    s.push_back({i, StepKind::generate});
    if (naps(i) && !together) s.push_back({i, StepKind::sleep});
  }
  for (const auto i : servers)
    if (naps(i) && together) s.push_back({i, StepKind::sleep});
  // slime's FSDP backend: the actor is awake, but its parameters make room for the reference (Loop::wakes_at_once)
  const bool refers = std::ranges::any_of(trainers, [&](std::size_t i) { return job.roles[i].kind == RoleKind::reference; });
  for (const auto i : trainers)
    if (refers && learns(job.roles[i]) && job.roles[i].trainer.loop.wakes_at_once) s.push_back({i, StepKind::step_aside});
  for (const auto i : in_pass_order(job, trainers))
    if ((job.kind == JobKind::rl && job.roles[i].trainer.log_prob_pass) || !learns(job.roles[i]))
      s.push_back({i, StepKind::log_probs});
  for (const auto i : trainers)
    if (learns(job.roles[i])) s.push_back({i, StepKind::train});
  if (job.sync.by != SyncBy::none && !servers.empty()) {
    lay_trainers_down();
    for (const auto i : servers) {
      if (naps(i) && takes_weights(job.roles[i])) s.push_back({i, StepKind::wake_weights});
      if (together && job.roles[i].kind == RoleKind::teacher) wake(i);  // beside the update already
    }
    for (const auto i : trainers)
      if (job.roles[i].kind == RoleKind::actor || job.roles[i].kind == RoleKind::trainer) s.push_back({i, StepKind::send});
    for (const auto i : servers)
      if (takes_weights(job.roles[i])) s.push_back({i, StepKind::receive});
    for (const auto i : trainers)
      if (job.sync.checkpoint_engine && follows_actor(job.roles[i])) s.push_back({i, StepKind::receive});
  }
  for (const auto i : trainers)
    if (job.roles[i].kind == RoleKind::actor || job.roles[i].kind == RoleKind::trainer) s.push_back({i, StepKind::save});
  return t;
}

}  // namespace oomplan
