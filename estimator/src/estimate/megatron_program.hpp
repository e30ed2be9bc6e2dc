// A role on Megatron-core as a memory program, turn by turn. `mark` is told of every phase as it begins.
#pragma once
#include <algorithm>
#include <optional>

#include "estimate/role_program.hpp"
#include "training/megatron.hpp"
#include "training/megatron_fsdp.hpp"

namespace oomplan {

template <class R>
class MegatronProgram {
 public:
  MegatronProgram(R& r, const RoleRun& run, const Seat& seat, Mark mark)
      : r_(r),
        run_(run),
        stage_(run.megatron[static_cast<std::size_t>(seat.stage)]),
        send_(plan_of(run, seat)),
        seat_(seat),
        mark_(std::move(mark)),
        sites_(r, run.role->name) {
    if (stage_.fsdp != nullptr)
      fsdp_.emplace(r, stage_, run.role->name);
    else
      engine_.emplace(r, stage_, run.role->name);
    context_ =
        site("context", seat.with_server ? run.constants.libraries : run.constants.context, Category::context, Pool::driver);
    const Bytes kept = leaves_groups() ? run.constants.kept_nccl : 0;
    nccl_ = site("nccl", run.constants.nccl - kept, Category::nccl, Pool::driver);
    kept_nccl_ = site("nccl_of_all_ranks", kept, Category::nccl, Pool::driver);
    sending_ = site("nccl_of_the_weight_update", run.constants.sending, Category::nccl, Pool::driver);
    margin_ = site("memory_margin", stage_.pauses_whole && stage_.pauses ? run.role->trainer.megatron.memory_margin : 0,
                   Category::other, Pool::driver);
    deepep_ = site("deepep_buffers", run.constants.deepep, Category::communication, Pool::driver);
    workspace_ =
        site("cublas_workspaces", (seat.with_server ? 1 : 2) * run.constants.workspace, Category::workspace, Pool::torch);
  }

  void step(StepKind kind) {
    if (kind == StepKind::load) return load();
    if (kind == StepKind::train) return train();
    if (kind == StepKind::log_probs) return log_probs();
    if (kind == StepKind::send) return send();
    if (kind == StepKind::sleep) return sleep();
    if (kind == StepKind::receive) return receive();
  }

 private:
  static const SyncPlan* plan_of(const RoleRun& run, const Seat& seat) {
    const std::size_t rank = seat.sender ? 0 : 1;
    const auto& plans = run.stage_sends.empty() ? run.send : run.stage_sends[static_cast<std::size_t>(seat.stage)];
    return plans[rank] ? &*plans[rank] : nullptr;
  }
  SiteRef site(std::string_view name, Bytes bytes, Category category, Pool pool) {
    if constexpr (R::kWrites) {
      Site row;
      row.name = sites_.named("", name);
      row.bytes = bytes;
      row.category = category;
      row.pool = pool;
      row.holder = Holder::resident;
      return r_.site(std::move(row));
    } else {
      (void)name;
      (void)category;
      return {0, bytes, pool};
    }
  }
  template <class Do>
  void on(Do&& act) {
    if (fsdp_)
      act(*fsdp_);
    else
      act(*engine_);
  }
  /// What workers of one process have once: Megatron's groups are made by the first of them.
  void process() {
    r_.alloc(context_);
    r_.alloc(nccl_);
    if (kept_nccl_.bytes > 0) r_.alloc(kept_nccl_);
    if (run_.constants.deepep > 0) r_.alloc(deepep_);
    r_.alloc(workspace_);
    if (margin_.bytes > 0) r_.alloc(margin_);
  }
  /// Of a process that a saver pauses as a whole, what is not the engine's. Communicators are destroyed: the saver sees none of
  /// NCCL's allocations (slime/backends/megatron_utils/actor.py: sleep, wake_up).
  bool leaves_groups() const { return stage_.pauses_whole || stage_.moves_whole; }
  template <class Act>
  void each_beside(Act&& act) {
    if (leaves_groups()) act(nccl_);
    if (!stage_.pauses_whole) return;
    act(workspace_);
    if (margin_.bytes > 0) act(margin_);
  }
  void load() {
    mark_(PhaseKind::load);
    if (seat_.owns_process || seat_.with_server) process();
    on([](auto& e) { e.load(); });
    doze();
  }
  /// torch_memory_saver puts all of a process's tensors on the host between its phases (AReaL's MegatronEngine.offload); verl
  /// moves what it is told to.
  void doze() {
    if (!engine_ || late()) return;
    lie_down();
  }
  /// Supervised training beside servers: the trainer is awake from step to step, and sleeps when they are asked
  /// (relax/backends/megatron/actor.py: _per_step_rollout; relax/engine/sft/predict/runner.py: run_sft_predict).
  bool late() const { return run_.role->kind == RoleKind::trainer && leaves_groups(); }
  void sleep() {
    if (!engine_ || std::exchange(asleep_, true)) return;
    mark_(PhaseKind::sleep);
    lie_down();
  }
  void lie_down() {
    if (stage_.pauses) engine_->pause();
    if (stage_.pauses || stage_.moves_whole) each_beside([&](const SiteRef& s) { r_.free(s); });
    engine_->park();
    if (stage_.pauses || stage_.parks_parameters || stage_.parks_optimizer) r_.trim();
  }
  void wake(bool trains) {
    if (!engine_ || (late() && !std::exchange(asleep_, false))) return;
    if (stage_.pauses || stage_.moves_whole) each_beside([&](const SiteRef& s) { r_.alloc(s); });
    if (stage_.pauses) engine_->resume();
    engine_->unpark(trains || stage_.moves_whole);
  }
  void log_probs() {
    if (stage_.forward_chunks.empty()) return;
    mark_(run_.critic ? PhaseKind::values : PhaseKind::log_probs);
    wake(false);
    engine_->forward_passes(stage_.micro_batches);
    doze();
  }
  /// Buckets of whole tensors in the checkpoint's form.
  void send() {
    if (send_ == nullptr) return;
    mark_(PhaseKind::send_weights);
    if (stage_.moves_whole ||
        (stage_.pauses && stage_.pauses_whole)) {  // it sleeps on: weights come from their copies on the host
      r_.alloc(sending_);
      record_send(r_, *send_);
      r_.free(sending_);
      return;
    }
    wake(false);
    record_send(r_, *send_);
    doze();
  }
  /// Whole parameters of a bucket, of which the rank takes its part (relax/distributed/checkpoint_service/backends/
  /// device_direct.py: recv_weight).
  void receive() {
    if (!run_.receive) return;
    mark_(PhaseKind::receive_weights);
    record_receive(r_, *run_.receive);
  }
  void train() {
    mark_(PhaseKind::forward);
    wake(true);
    const auto chunks = static_cast<std::int64_t>(stage_.chunks.size());
    const std::int64_t played = played_micro_batches(stage_.micro_batches, stage_.stages, chunks, stage_.group);
    on([&](auto& e) { e.passes(played, [this](bool backward) { mark_(backward ? PhaseKind::backward : PhaseKind::forward); }); });
    mark_(PhaseKind::optimizer);
    on([](auto& e) { e.optimizer_step(); });
    if (run_.empties_behind_training) r_.trim();
    doze();
  }

  R& r_;
  const RoleRun& run_;
  const MegatronStage& stage_;
  const SyncPlan* send_;
  Seat seat_;
  Mark mark_;
  EngineSites<R> sites_;
  std::optional<MegatronEngine<R>> engine_;
  std::optional<MegatronFsdpEngine<R>> fsdp_;
  SiteRef context_, nccl_, kept_nccl_, sending_, deepep_, workspace_, margin_;
  bool asleep_ = false;  ///< of one that sleeps late
};

}  // namespace oomplan
