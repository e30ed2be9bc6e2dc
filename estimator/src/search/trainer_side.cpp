#include "search/trainer_side.hpp"

#include <algorithm>

namespace oomplan {

TrainerSide::TrainerSide(const Job& job, const Catalog& catalog, TapeStore& store, const std::vector<RoleRun>& runs)
    : job_(job), catalog_(catalog), store_(store), roles_(job.roles), runs_(runs), gpu_(catalog.gpu(job.cluster.gpu)) {
  std::size_t process = 0;
  for (std::size_t i = 0; i < roles_.size(); ++i) {
    runs_[i].role = &roles_[i];
    if (roles_[i].serves()) continue;
    seats_.push_back(i);
    SeatOnGpu s;
    s.role = i;
    s.seat.sender = true;  // rank 0 fills the buckets: it needs at least what the others do
    if (roles_[i].in_process && process > 0) {
      s.process = 0;
      s.seat.owns_process = false;
    } else {
      s.process = process++;
    }
    class_.seats.push_back(s);
    const bool learner = runs_[i].trains;
    if (leader_ == nullptr || (learner && !runs_[static_cast<std::size_t>(leader_ - roles_.data())].trains)) leader_ = &roles_[i];
  }
  class_.processes = process;
  class_.gpus = {0};
  const Timeline all = timeline_of(job);
  const auto mine = [&](const Step& s) { return !job.roles[s.role].serves(); };
  std::copy_if(all.init.begin(), all.init.end(), std::back_inserter(timeline_.init), mine);
  std::copy_if(all.iteration.begin(), all.iteration.end(), std::back_inserter(timeline_.iteration), mine);
  if (leader_ != nullptr) cost_ = cost_of(*leader_->architecture);
}

void TrainerSide::put(const TrainerPoint& p, Trainer& t, bool learns) {
  t.layout.context = p.context;
  t.layout.data = p.gpus / p.context;
  t.tokens_per_micro_batch = p.tokens;
  t.memory_efficient_load = p.efficient_load;
  t.storage = p.storage;
  t.offload_parameters = p.offload_parameters;
  if (!learns) return;
  t.recompute = p.recompute;
  t.optimizer_form = p.form;
  t.offload_optimizer = p.offload_optimizer;
}

const ProcessConstants& TrainerSide::constants(std::size_t i, std::int64_t world) {
  const std::int64_t context = roles_[i].trainer.layout.context > 1 ? 2 : 1;
  for (const auto& k : known_)
    if (k.role == i && k.world == world && k.context == context) return k.constants;
  known_.push_back({i, world, context, process_constants(job_, roles_[i], catalog_)});
  return known_.back().constants;
}

TrainerVerdict TrainerSide::judge(const TrainerPoint& p) {
  int passes = 0;
  for (const std::size_t i : seats_) {
    put(p, roles_[i].trainer, runs_[i].trains);
    update_trainer(runs_[i], job_, store_);
    runs_[i].constants = constants(i, roles_[i].trainer.layout.world());
    if (runs_[i].tapes.log_probs) ++passes;
  }
  const ClassFold fold = fold_class(job_, runs_, class_, timeline_);
  TrainerVerdict v;
  v.point = p;
  for (const auto& f : fold.phases) {
    if (f.needed <= v.need) continue;
    v.need = f.needed;
    v.phase = f.phase;
    v.role = f.role;
  }
  v.idle = fold.held;
  const Trainer& t = leader_->trainer;
  TrainLoad load;
  load.gpus = p.gpus;
  load.context = p.context;
  load.tokens_per_step = job_.sequences_per_step * (job_.prompt_tokens + job_.response_tokens);
  load.tokens_per_micro_batch = p.tokens;
  load.micro_batches = micro_batches_of(job_, t);
  load.sequence = job_.prompt_tokens + job_.response_tokens;
  load.recompute = p.recompute == Recompute::full;
  load.log_prob_passes = passes;
  const RoleRun& run = runs_[static_cast<std::size_t>(leader_ - roles_.data())];
  if (p.offload_parameters) load.offloaded_bytes += 2.0 * static_cast<double>(run.plan.resident);
  if (p.offload_optimizer) load.offloaded_bytes += 2.0 * static_cast<double>(run.plan.optimizer);
  v.seconds = train_seconds(cost_, load, gpu_);
  return v;
}

}  // namespace oomplan
