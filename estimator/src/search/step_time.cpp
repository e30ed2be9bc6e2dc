#include "search/step_time.hpp"

#include <algorithm>
#include <array>

#include "estimate/timeline.hpp"
#include "job/placement.hpp"
#include "search/server_side.hpp"
#include "search/trainer_side.hpp"

namespace oomplan {
namespace {

/// Several groups of trainers, or several servers, are no search's.
bool has_two_sides(const Job& job) {
  const Role *trainers = nullptr, *server = nullptr;
  for (const auto& r : job.roles) {
    const Role*& side = r.serves() ? server : trainers;
    const Role* mine = r.serves() ? &r : anchor(job, r);
    if (side != nullptr && side != mine) return false;
    side = mine;
  }
  return true;
}

TrainerPoint own_point(const Trainer& t) {
  return {t.layout.world(),     t.layout.context,    t.tokens_per_micro_batch, t.recompute, t.optimizer_form,
          t.offload_parameters, t.offload_optimizer, t.memory_efficient_load,  t.storage};
}
ServerChoice own_choice(const Server& s) { return {s.layout.world(), s.layout.tensor, s.memory_fraction, s.max_running, s.kv}; }

}  // namespace

std::optional<double> step_seconds(const Job& job, const Catalog& catalog, TapeStore& store) {
  if (!has_two_sides(job) || job.sequences_per_step <= 0) return std::nullopt;
  const auto runs = resolve_roles(job, catalog, store);
  const Space space;
  TrainerSide trainers(job, space, catalog, store, runs);
  const ServerSide servers(job, catalog, runs);
  double train = 0, serve = 0;
  Bytes occupied = 0;
  const bool shared = !trainers.empty() && !servers.empty() && share_gpus(job, trainers.leader(), servers.role());
  if (!trainers.empty()) {
    const TrainerVerdict v = trainers.judge(own_point(trainers.leader().trainer));
    if (!v.possible) return std::nullopt;
    train = v.seconds;
    if (shared && !v.visits.empty()) occupied = v.visits.front().held;
  }
  if (!servers.empty()) {
    const SyncPlan* receive = trainers.empty() ? nullptr : trainers.receive(trainers.leader().trainer.storage);
    const ServerVerdict v = servers.judge(own_choice(servers.role().server), occupied, receive);
    if (v.refusal != ServerRefusal::none) return std::nullopt;
    serve = v.seconds;
  }
  const bool at_once = !trainers.empty() && !shared && trainers.leader().trainer.loop.generates_while_training;
  return at_once ? std::max(train, serve) : train + serve;
}

bool models_time_of(std::string_view knob) {
  static constexpr std::array<std::string_view, 12> kModelled{"layout",
                                                              "tokens_per_micro_batch",
                                                              "recompute",
                                                              "precision.storage",
                                                              "offload",
                                                              "memory_efficient_load",
                                                              "mem_fraction_static",
                                                              "gpu_memory_utilization",
                                                              "max_running_requests",
                                                              "kv",
                                                              "enforce_eager",
                                                              "expandable_segments"};
  return std::find(kModelled.begin(), kModelled.end(), knob.substr(knob.find('.') + 1)) != kModelled.end() ||
         std::find(kModelled.begin(), kModelled.end(), knob) != kModelled.end();
}

}  // namespace oomplan
