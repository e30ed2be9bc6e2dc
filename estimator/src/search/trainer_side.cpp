#include "search/trainer_side.hpp"

#include <algorithm>

#include "job/follow.hpp"

namespace oomplan {
namespace {

/// The training seats of one GPU, their processes numbered anew.
GpuClass training_seats(const Job& job, const std::vector<RoleRun>& runs) {
  GpuClass out;
  for (const auto& c : gpu_classes(job, runs)) {
    std::vector<std::size_t> numbers;  // of the processes that train
    for (auto seat : c.seats) {
      if (job.roles[seat.role].serves()) continue;
      const auto known = std::find(numbers.begin(), numbers.end(), seat.process);
      const auto number = static_cast<std::size_t>(known - numbers.begin());
      if (known == numbers.end()) numbers.push_back(seat.process);
      seat.process = number;
      out.seats.push_back(seat);
    }
    out.processes = numbers.size();
    out.gpus = {c.gpus.front()};
    if (!out.seats.empty()) break;
  }
  return out;
}

}  // namespace

TrainerSide::TrainerSide(const Job& job, const Space& space, const Catalog& catalog, TapeStore& store,
                         const std::vector<RoleRun>& runs)
    : job_(job),
      catalog_(catalog),
      store_(store),
      roles_(job.roles),
      runs_(runs),
      class_(training_seats(job, runs)),
      gpu_(catalog.gpu(job.cluster.gpu)) {
  const Role* server = nullptr;
  for (std::size_t i = 0; i < roles_.size(); ++i) {
    runs_[i].role = &roles_[i];
    if (roles_[i].serves())
      server = &job.roles[i];
    else if (leader_ == nullptr || (runs_[i].trains && !runs_[leads_].trains))
      leader_ = &job.roles[leads_ = i];
  }
  if (leader_ == nullptr) return;
  for (std::size_t i = 0; i < roles_.size(); ++i) moves_.push_back(moves_of(space, job.roles[i], runs_[i].trains));
  // On GPUs of their own trainers never see a server.
  const bool shared = server != nullptr && share_gpus(job, *server, *leader_);
  const Timeline all = timeline_of(job);
  const auto mine = [&](const Step& s) { return shared || !job.roles[s.role].serves(); };
  std::copy_if(all.init.begin(), all.init.end(), std::back_inserter(timeline_.init), mine);
  std::copy_if(all.iteration.begin(), all.iteration.end(), std::back_inserter(timeline_.iteration), mine);
  cost_ = cost_of(*leader_->architecture);
}

/// A role that trains goes with the leader. One that does not takes over only what matters to it, or what it would take over
/// anyway when the job is read again.
TrainerSide::Moves TrainerSide::moves_of(const Space& space, const Role& role, bool learns) const {
  const auto free_to = [&](std::string_view knob, bool matters) {
    if (held(space, &role, knob)) return false;
    if (matters || &role == leader_) return true;
    const auto all = followers(job_, leader_->name + "." + std::string(knob));
    return std::find(all.begin(), all.end(), role.name + "." + std::string(knob)) != all.end();
  };
  Moves m;
  m.tokens = free_to("tokens_per_micro_batch", true);
  m.recompute = free_to("recompute", learns);
  m.form = free_to("optimizer_form", learns);
  m.parameters = free_to("offload", true);
  m.optimizer = m.parameters && learns;
  m.load = free_to("memory_efficient_load", true);
  m.storage = free_to("precision.storage", true);
  return m;
}

void TrainerSide::put(const TrainerPoint& p, std::size_t role, Trainer& t) const {
  const Trainer& own = leader_->trainer;
  const Moves& m = moves_[role];
  // What the point leaves as the leader has it, every role keeps as it has it.
  if (p.context != own.layout.context) t.layout.context = p.context;
  t.layout.data = std::max<std::int64_t>(1, p.gpus / (t.layout.context * t.layout.tensor));
  if (m.tokens && p.tokens != own.tokens_per_micro_batch) t.tokens_per_micro_batch = p.tokens;
  if (m.recompute && p.recompute != own.recompute) t.recompute = p.recompute;
  if (m.form && p.form != own.optimizer_form) t.optimizer_form = p.form;
  if (m.parameters && p.offload_parameters != own.offload_parameters) t.offload_parameters = p.offload_parameters;
  if (m.optimizer && p.offload_optimizer != own.offload_optimizer) t.offload_optimizer = p.offload_optimizer;
  if (m.load && p.efficient_load != own.memory_efficient_load) t.memory_efficient_load = p.efficient_load;
  if (m.storage && p.storage != own.storage) t.storage = p.storage;
}

void TrainerSide::put(const TrainerPoint& p, Job& job) const {
  for (std::size_t i = 0; i < job.roles.size(); ++i)
    if (!job.roles[i].serves()) put(p, i, job.roles[i].trainer);
}

const std::vector<RoleRun>& TrainerSide::stored(DType storage) {
  auto& known = stored_[storage];
  if (!known) {
    known = std::make_unique<Stored>(Stored{job_, {}});
    for (std::size_t i = 0; i < roles_.size(); ++i)
      if (!roles_[i].serves() && moves_[i].storage && storage != leader_->trainer.storage)
        known->job.roles[i].trainer.storage = storage;
    known->runs = resolve_roles(known->job, catalog_, store_);
  }
  return known->runs;
}

const SyncPlan* TrainerSide::receive(DType storage) {
  for (const auto& r : stored(storage))
    if (r.receive) return &*r.receive;
  return nullptr;
}

const ProcessConstants& TrainerSide::constants(std::size_t i, std::int64_t world) {
  const std::int64_t context = roles_[i].trainer.layout.context;
  for (const auto& k : known_)
    if (k.role == i && k.world == world && k.context == context) return k.constants;
  known_.push_back({i, world, context, process_constants(job_, roles_[i], catalog_)});
  return known_.back().constants;
}

void TrainerSide::keep_passes(const TrainerPoint& p) {
  const TrainerPoint& q = folded_;
  const bool equal = p.gpus == q.gpus && p.context == q.context && p.tokens == q.tokens && p.recompute == q.recompute &&
                     p.storage == q.storage && !passes_.empty();
  if (!equal) {
    passes_.assign(runs_.size(), {});
    for (std::size_t i = 0; i < runs_.size(); ++i) runs_[i].passes = &passes_[i];
  }
  folded_ = p;
}

TrainerVerdict TrainerSide::judge(const TrainerPoint& p) {
  TrainerVerdict v;
  v.point = p;
  keep_passes(p);
  int passes = 0;
  try {
    for (const auto& seat : class_.seats) {
      const std::size_t i = seat.role;
      roles_[i].trainer = job_.roles[i].trainer;
      put(p, i, roles_[i].trainer);
      update_trainer(runs_[i], job_, store_);
      runs_[i].constants = constants(i, roles_[i].trainer.layout.world());
      const RoleRun& sent = stored(p.storage)[i];
      runs_[i].send = sent.send;
      runs_[i].save = sent.save;
      if (runs_[i].tapes.log_probs) ++passes;
    }
  } catch (const InputError&) {
    v.possible = false;  // what the layers themselves refuse: Ulysses with other kernels than hf_flash
    return v;
  }
  ClassFold fold = fold_class(job_, runs_, class_, timeline_);
  for (const auto& f : fold.phases) {
    if (f.needed <= v.need) continue;
    v.need = f.needed;
    v.phase = f.phase;
    v.role = f.role;
  }
  v.visits = std::move(fold.visits);
  const Trainer& t = roles_[leads_].trainer;
  TrainLoad load;
  load.gpus = p.gpus;
  load.context = p.context * t.layout.tensor;
  load.tokens_per_step = job_.sequences_per_step * (job_.prompt_tokens + job_.response_tokens);
  load.tokens_per_micro_batch = p.tokens;
  load.micro_batches = micro_batches_of(job_, t);
  load.sequence = job_.prompt_tokens + job_.response_tokens;
  load.recompute = p.recompute == Recompute::full;
  load.log_prob_passes = passes;
  const TrainPlan& plan = runs_[leads_].plan;
  if (p.offload_parameters) load.offloaded_bytes += 2.0 * static_cast<double>(plan.resident);
  if (p.offload_optimizer) load.offloaded_bytes += 2.0 * static_cast<double>(plan.optimizer);
  v.seconds = train_seconds(cost_, load, gpu_);
  return v;
}

}  // namespace oomplan
