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
  return x != nullptr && x == anchor(job, b);
}

namespace {

/// A reward model's server starts in front of the rollout's, and sleeps when that one measures what is free; in 0.7.0 also in
/// front of the trainer (verl/trainer/ppo/ray_trainer.py init_workers, 0.7.0 to 0.10; verl/trainer/ppo/v1/trainer_base.py, 0.9).
bool starts_early(const Role& role) { return role.kind == RoleKind::reward; }
bool starts_first(const Role& role) {
  const std::string_view release = role.trainer.framework_version;
  return starts_early(role) && !release.empty() && compare_versions(release, "0.7.1") < 0;
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
  const auto start_servers = [&](auto which) {
    for (const auto i : servers) {
      if (!which(job.roles[i])) continue;
      t.init.push_back({i, StepKind::load});
      t.init.push_back({i, StepKind::start});
      if (naps(i)) t.init.push_back({i, StepKind::sleep});
    }
  };
  start_servers(starts_first);
  if (!server_first) load_trainers();
  start_servers([](const Role& role) { return starts_early(role) && !starts_first(role); });
  start_servers([](const Role& role) { return !starts_early(role); });
  if (server_first) load_trainers();
  auto& s = t.iteration;
  for (const auto i : servers) {
    if (naps(i)) s.push_back({i, StepKind::wake_weights});
    if (naps(i)) s.push_back({i, StepKind::wake_cache});
    s.push_back({i, StepKind::generate});
    if (naps(i)) s.push_back({i, StepKind::sleep});
  }
  for (const auto i : in_pass_order(job, trainers))
    if (job.kind == JobKind::rl || !learns(job.roles[i])) s.push_back({i, StepKind::log_probs});
  for (const auto i : trainers)
    if (learns(job.roles[i])) s.push_back({i, StepKind::train});
  if (job.sync.by != SyncBy::none && !servers.empty()) {
    for (const auto i : servers)
      if (naps(i) && takes_weights(job.roles[i])) s.push_back({i, StepKind::wake_weights});
    for (const auto i : trainers)
      if (job.roles[i].kind == RoleKind::actor) s.push_back({i, StepKind::send});
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
