// One role as a memory program, turn by turn, for either recorder. `mark` is told of every phase as it begins.
#pragma once
#include <array>
#include <forward_list>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "estimate/role_run.hpp"
#include "estimate/timeline.hpp"
#include "training/generation_run.hpp"
#include "training/reference_run.hpp"

namespace oomplan {

using Mark = std::function<void(PhaseKind)>;

/// Which GPU of the role: what its program depends on besides the role.
struct Seat {
  bool sender = false;       ///< rank 0 of the trainer: fills buckets, keeps the files' copy on the host
  bool owns_process = true;  ///< false: lives in another role's process
  bool with_server = false;  ///< ... which is a server's: its context is there, a trainer's libraries and communicators are not
  std::int64_t stage = 0;    ///< of a server's or of Megatron's pipeline
  bool operator==(const Seat&) const = default;
};

/// Tapes folded for the roles of one estimate: equal passes are evaluated once.
class FoldedTapes {
 public:
  /// The reference stays valid.
  FoldedTape& of(const Tape& tape, const TokenCounts& counts) {
    for (FoldedTape& t : tapes_)
      if (t.is_of(tape, counts)) return t;
    return tapes_.emplace_front(tape, counts);
  }

 private:
  std::forward_list<FoldedTape> tapes_;
};

/// `tapes`: where the roles of an estimate share what they fold. REQUIRES: all that is handed in outlives the program.
template <class R>
class TrainerProgram {
 public:
  TrainerProgram(R& r, const RoleRun& run, const Seat& seat, const SyncPlan* send, const SyncPlan* save, Mark mark,
                 std::int64_t inner_micro_batches = 1, FoldedTapes* tapes = nullptr)
      : r_(r),
        run_(run),
        seat_(seat),
        send_(send),
        save_(save),
        mark_(std::move(mark)),
        inner_(inner_micro_batches),
        core_(r, run.plan, run.role->name),
        reference_(r, run.plan, run.role->name, core_),
        generation_(r, run.plan, run.role->name),
        has_workspace_(pauses() || !seat.owns_process),
        has_workspace_of_autograd_(pauses() || (!seat.owns_process && !learns_at_once() && !seat.with_server)) {
    const auto play = [&](std::optional<Player<R>>& player, const Tape* tape, const PassCounts& pass) {
      if (tape == nullptr) return;
      FoldedTape* folded = tapes != nullptr ? &tapes->of(*tape, pass.counts) : nullptr;
      player.emplace(r, *tape, pass.counts, pass.chunks, run.role->name, folded);
    };
    play(train_, run.plan.train, run.plan.train_counts);
    play(log_probs_, run.plan.log_probs, run.plan.log_prob_counts);
    if (train_) reference_.teach(*train_);
    context_ =
        site("context", seat.with_server ? run.constants.libraries : run.constants.context, Category::context, Pool::driver);
    nccl_ = site("nccl", run.constants.nccl, Category::nccl, Pool::driver);
    workspace_ = site("cublas_workspace", run.constants.workspace, Category::workspace, Pool::torch);
    autograd_workspace_ = site("cublas_workspace_of_autograd", run.constants.workspace, Category::workspace, Pool::torch);
    full_ = site("full_model_at_load", run.loads_full ? run.full_storage : 0, Category::weights, Pool::torch);
    first_shard_ =
        site("first_unit_sharded_at_load", run.loads_full && !run.plan.zero ? largest_unit() : 0, Category::weights, Pool::torch);
    const bool on_host = !run_.loads_full && (seat.sender || run_.loads_on_every_host);
    host_load_ = site("full_model_at_load_on_host", on_host ? run_.full_storage : 0, Category::host_copy, Pool::pageable);
    pixels_ = site("pixel_values_of_the_batch", run_.held_pixels, Category::inputs, Pool::torch);
  }

  void step(StepKind kind) {
    switch (kind) {
      case StepKind::load:
        return load();
      case StepKind::step_aside:
        return step_aside();
      case StepKind::log_probs:
        return log_probs();
      case StepKind::train:
        return train();
      case StepKind::send:
        return while_sending([&] {
          // verl's SHARDED_STATE_DICT: a shard of everything lives while tensor by tensor is gathered from it
          if (send_ != nullptr && run_.summon) {
            core_.summon(*run_.summon);
            empty_cache();
            record_send(r_, *send_);
          } else if (send_ != nullptr) {
            core_.read_state(true);
            record_send(r_, *send_);
            core_.drop_state();
          }
          empty_cache();
        });
      case StepKind::save:
        return awake(PhaseKind::save, [&] {
          if (save_ == nullptr) return;
          core_.read_state(false);
          record_send(r_, *save_);
        });
      default:
        return;
    }
  }

 private:
  const TrainingLoop& loop() const { return run_.role->trainer.loop; }
  Bytes largest_unit() const {
    Bytes most = run_.plan.root.resident;
    for (const auto& u : run_.plan.units) most = std::max(most, u.resident);
    return most;
  }
  SiteRef site(std::string_view name, Bytes bytes, Category category, Pool pool) {
    if constexpr (R::kWrites) {
      Site row;
      row.name = run_.role->name + "." + std::string(name);
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

  void load() {
    mark_(PhaseKind::load);
    if (seat_.owns_process) {
      r_.alloc(context_);
      r_.alloc(nccl_);
      if (pauses()) each_workspace([&](const SiteRef& s) { r_.alloc(s); });
    } else if (seat_.with_server && !learns_at_once()) {
      r_.alloc(context_);
      r_.alloc(nccl_);
    }
    r_.alloc(host_load_);
    r_.alloc(full_);
    r_.alloc(first_shard_);
    r_.free(first_shard_);
    // with LoRA AReaL's rank 0 keeps the state dict that it sends to the others' shards (areal/engine/fsdp_engine.py, 0.4.1 on)
    const bool sends_state = seat_.sender && run_.role->trainer.lora.rank > 0;
    if (!sends_state) r_.free(full_);
    core_.load();
    if (sends_state) r_.free(full_);
    reference_.load();
    r_.free(host_load_);
    empty_cache();
    doze();
  }
  void empty_cache() {
    if (loop().empties_cache) r_.trim();
  }
  /// Parameters and states that lie on the host between phases come for the phase and go after it.
  void doze() {
    const bool parameters = run_.plan.offload_parameters && !run_.plan.cpu_offload;
    const bool states = run_.plan.offload_optimizer && states_ && !run_.plan.cpu_offload;
    if (parameters) core_.offload_parameters();
    if (states) core_.offload_states();
    if (pauses()) each_workspace([&](const SiteRef& s) { r_.free(s); });
    if (parameters || states) r_.trim();
  }
  /// torch_memory_saver takes all of the process from the device (AReaL's engine.offload), the workspaces with it.
  bool pauses() const {
    return seat_.owns_process && !loop().moves_parameters && run_.plan.offload_parameters && !run_.plan.cpu_offload &&
           !learns_at_once();
  }
  /// A process that is paused is described with both from its load on.
  template <class Act>
  void each_workspace(Act&& act) {
    act(workspace_);
    act(autograd_workspace_);
  }
  /// cuBLAS has no workspace before its first matrix product: loading a model multiplies nothing.
  void make_workspace() {
    if (!std::exchange(has_workspace_, true)) r_.alloc(workspace_);
  }
  void wake_up() {
    if (pauses()) each_workspace([&](const SiteRef& s) { r_.alloc(s); });
    core_.reload_parameters();
  }
  template <class Work>
  void awake(PhaseKind phase, Work&& work) {
    mark_(phase);
    if (run_.plan.offload_parameters && !run_.plan.cpu_offload) wake_up();
    work();
    const bool parameters = run_.plan.offload_parameters && !run_.plan.cpu_offload;
    if (!parameters) return;
    core_.offload_parameters();
    if (pauses()) each_workspace([&](const SiteRef& s) { r_.free(s); });
    r_.trim();
  }

  /// slime's FSDP backend (slime/backends/fsdp_utils/update_weight_utils.py, 0.2.0 to 0.2.2): parameters come from where they
  /// are.
  template <class Work>
  void while_sending(Work&& work) {
    if (!loop().sends_asleep) return awake(PhaseKind::send_weights, std::forward<Work>(work));
    mark_(PhaseKind::send_weights);
    work();
    r_.trim();
  }

  /// Parameters and states, in front of the first pass of a step.
  void wake_all() {
    if (run_.plan.cpu_offload || std::exchange(stays_, true)) return;
    if (run_.plan.offload_parameters || aside_) core_.reload_parameters();
    if (!std::exchange(aside_, false)) wake_states();
  }
  void wake_states() {
    if (run_.plan.offload_optimizer && states_ && !run_.plan.cpu_offload) core_.reload_states();
  }
  /// The reference's pass comes first: all wakes, then the parameters go to the host until it is over (actor.py:
  /// _compute_log_prob).
  void step_aside() {
    mark_(PhaseKind::log_probs);
    if (run_.plan.cpu_offload) return;
    if (run_.plan.offload_parameters) core_.reload_parameters();
    wake_states();
    core_.offload_parameters();
    r_.trim();
    aside_ = true;
  }

  bool learns_at_once() const { return loop().learns_at_once && run_.trains; }
  void log_probs() {
    const bool generates = run_.role->kind == RoleKind::generator;
    const PhaseKind phase = generates ? PhaseKind::generate : run_.critic ? PhaseKind::values : PhaseKind::log_probs;
    if (loop().wakes_at_once && run_.trains) {
      mark_(phase);
      wake_all();
      make_workspace();
      return stretch(passes().log_probs, [&] { core_.forward(*log_probs_, Index(0)); });
    }
    if (!learns_at_once())
      return awake(phase, [&] {
        core_.before_forward();
        make_workspace();
        r_.alloc(pixels_);
        stretch(passes().log_probs, [&] { core_.forward(*log_probs_, Index(0)); });
        generation_.last_token();
        r_.free(pixels_);
      });
    mark_(phase);
    if (run_.plan.offload_parameters) core_.reload_parameters();
    stays_ = true;
    make_workspace();
    // the rows of the reference adapter, then those of the actor's (agilerl/algorithms/core/base.py _fused_forward_no_grad)
    for (std::int64_t i = 0; i < 2; ++i) stretch(passes().log_probs, [&] { core_.forward(*log_probs_, Index(i)); });
  }
  PassSpans& passes() { return run_.passes != nullptr ? *run_.passes : passes_; }
  void micro_batch(Index micro, bool first, bool last) {
    mark_(PhaseKind::forward);
    core_.before_forward();
    make_workspace();
    stretch(passes().forward, [&] {
      core_.forward(*train_, micro);
      reference_.forward();
      train_->leave_step(micro);
    });
    drop_kept_inputs();
    mark_(PhaseKind::backward);
    const bool first_of_all = !std::exchange(has_workspace_of_autograd_, true);
    if (learns_at_once() && first_of_all) return first_update(micro);
    const bool reduces = last || run_.plan.sync_every;
    reduced_ = reduced_ || reduces;
    if (first_of_all) {  // no later pass is like it
      train_->make_at_product(autograd_workspace_);
      core_.backward(*train_, micro, first, last);
      return train_->make_if_not_made();
    }
    auto& known = passes().backward[(first ? 1 : 0) + (reduces ? 2 : 0)];
    if (!learns_at_once()) return stretch(known, [&] { core_.backward(*train_, micro, first, last); });
    stretch(known, [&] { core_.backward_keeping_inputs(*train_, micro); });
    kept_inputs_ = micro;
  }
  /// Autograd's thread has no cuBLAS workspace before its first matrix product: it comes to lie in what the loss has left free.
  void first_update(Index micro) {
    if (run_.role->trainer.head == LossHead::agilerl_fused)
      train_->make_at_product(autograd_workspace_);
    else
      r_.alloc(autograd_workspace_);
    core_.backward_keeping_inputs(*train_, micro);
    reduced_ = true;
    kept_inputs_ = micro;
  }
  /// learn() holds the KL divergence of an update until the next _loss() has returned. Its graph ends at the embedding's output,
  /// which wants a gradient: both stay (agilerl/algorithms/grpo.py, 2.8).
  void drop_kept_inputs() {
    if (!kept_inputs_) return;
    core_.drop_inputs(*train_, *kept_inputs_);
    kept_inputs_.reset();
  }
  /// DDP cuts its buckets anew behind the first backward pass that reduced.
  void before_micro_batch(bool first) {
    if (run_.plan.buckets == 0 || !reduced_ || rebuilt_) return;
    mark_(PhaseKind::forward);
    core_.rebuild_buckets(!first);
    rebuilt_ = true;
  }
  /// A fold plays a micro-batch from the Spans of the first one that was like it. What stays gathered behind a forward-only
  /// pass makes them differ.
  template <class Work>
  void stretch(std::optional<Span>& known, Work&& work) {
    if constexpr (R::kWrites) {
      (void)known;
      work();
    } else {
      if (!run_.plan.reshard_layers || !run_.plan.reshard_root || run_.plan.reshard_ranks > 0) return work();
      if (!known) {
        R apart;
        std::swap(apart, r_);  // the engine records into r_
        work();
        std::swap(apart, r_);
        known = apart.span();
      }
      r_.call(*known);
    }
  }
  void train() {
    const std::int64_t n = run_.plan.micro_batches;
    mark_(PhaseKind::forward);
    if (loop().wakes_at_once) {
      wake_all();
      stays_ = false;
    } else {
      if (run_.plan.offload_parameters && !run_.plan.cpu_offload && !stays_) wake_up();
      stays_ = false;
      wake_states();
    }
    r_.alloc(pixels_);
    if (run_.plan.step_every) return train_step_by_step(n);
    before_micro_batch(!kept_);
    const std::int64_t from = kept_ ? 1 : 0;  // gradients that were kept are those of number 0
    micro_batch(Index(from), !kept_, n == 1);
    if (n > 2) {
      before_micro_batch(false);
      // The micro-batches in between end where they began: one of them stands for all, but for the allocator's history.
      const std::int64_t played = std::min(n - 2, inner_);
      if (played == 1)
        micro_batch(Index(from + 1), false, false);
      else
        r_.repeat(played, [&](Index i) { micro_batch(i, false, false); }, Direction::forward, from + 1);
    }
    if (n > 1) {
      before_micro_batch(false);
      micro_batch(Index(from + n - 1), false, true);
    }
    optimizer_step();
    r_.free(pixels_);
    if (run_.empties_behind_training || loop().wakes_at_once) r_.trim();
    doze();
  }
  void optimizer_step() {
    mark_(PhaseKind::optimizer);
    if (!states_) core_.make_states();
    states_ = true;
    core_.optimizer_step();
    kept_ = run_.plan.keep_gradients;
    if (!kept_) core_.drop_gradients(*train_);
  }
  /// Every micro-batch is an update of its own: the first one of all runs before there are states.
  void train_step_by_step(std::int64_t n) {
    const auto update = [&](Index i) {
      micro_batch(i, true, true);
      optimizer_step();
    };
    for (std::int64_t i = 0; i < std::min(n, inner_ + 2); ++i) update(Index(i % 2));  // those behind the second are like it
    r_.free(pixels_);
    drop_kept_inputs();
    doze();
  }

  R& r_;
  const RoleRun& run_;
  Seat seat_;
  const SyncPlan* send_;
  const SyncPlan* save_;
  Mark mark_;
  std::int64_t inner_;
  TrainEngine<R> core_;
  ReferenceRun<R> reference_;
  GenerationRun<R> generation_;
  std::optional<Player<R>> train_, log_probs_;
  PassSpans passes_;
  SiteRef context_, nccl_, workspace_, autograd_workspace_, full_, first_shard_, host_load_, pixels_;
  bool states_ = false;
  bool kept_ = false;                               ///< gradients of the step before are there
  std::optional<Index> kept_inputs_;                ///< of the update before
  bool has_workspace_, has_workspace_of_autograd_;  ///< a thread's: from its first product on, once a process
  bool stays_ = false;                      ///< parameters that lie on the host between phases are there from the phase before
  bool aside_ = false;                      ///< parameters lie on the host for the reference's pass alone
  bool reduced_ = false, rebuilt_ = false;  ///< DDP's buckets
};

template <class R>
class ServerProgram {
 public:
  ServerProgram(R& r, const ServerPlan& plan, const SyncPlan* receive, Mark mark)
      : r_(r), plan_(plan), receive_(receive), mark_(std::move(mark)), sites_(make_sites(r, plan)) {}

  void step(StepKind kind) {
    switch (kind) {
      case StepKind::load:
        return phase(PhaseKind::load, ServerPhase::load);
      case StepKind::start:
        return phase(PhaseKind::start, ServerPhase::start);
      case StepKind::generate:
        return phase(PhaseKind::generate, ServerPhase::generate);
      case StepKind::sleep:
        if (asleep_) return;
        asleep_ = true;
        return phase(PhaseKind::sleep, ServerPhase::sleep);
      case StepKind::wake_weights:
        if (!asleep_) return;
        asleep_ = false;
        weights_only_ = true;
        return phase(PhaseKind::wake, ServerPhase::wake_weights);
      case StepKind::wake_cache:
        if (!weights_only_) return;
        weights_only_ = false;
        return phase(PhaseKind::wake, ServerPhase::wake_cache);
      case StepKind::receive:
        mark_(PhaseKind::receive_weights);
        if (receive_ != nullptr) record_receive(r_, *receive_);
        return;
      default:
        return;
    }
  }

 private:
  void phase(PhaseKind kind, ServerPhase p) {
    mark_(kind);
    record(r_, plan_, sites_, p);
  }
  R& r_;
  const ServerPlan& plan_;
  const SyncPlan* receive_;
  Mark mark_;
  ServerSites sites_;
  bool asleep_ = false, weights_only_ = false;
};

}  // namespace oomplan
