// Serving configurations judged by themselves: does the engine start, what does it hold awake and asleep, how fast is it.
#pragma once
#include "estimate/fold.hpp"
#include "search/axes.hpp"
#include "search/time_model.hpp"

namespace oomplan {

struct ServerVerdict {
  ServerChoice choice;
  ServerRefusal refusal = ServerRefusal::none;
  Bytes missing = 0;  ///< what the engine lacks to start
  Bytes need = 0;     ///< at the worst moment, of this process alone
  /// One for every turn of the server: what it needs then by itself, and what it holds behind the turn.
  struct Turn {
    Bytes need = 0, held = 0;
  };
  std::vector<Turn> turns;
  std::int64_t requests = 0;  ///< of full length that a replica holds
  bool shortage = false;      ///< fewer than asked: requests queue or are preempted
  double seconds = 0;
  int changes = 0;  ///< settings that differ from the job's
  int shape = 0;    ///< equal: they differ only in how much is spent
};

/// Judges and teachers stay as they are stated.
bool is_searched_server(const Role&);

class ServerSide {
 public:
  /// REQUIRES: job and runs outlive this; at most one role is a searched server.
  ServerSide(const Job&, const Catalog&, const std::vector<RoleRun>& runs);
  bool empty() const { return run_ == nullptr; }
  const Role& role() const { return *run_->role; }
  /// `occupied`: what the GPU's trainers hold when the engine starts. `receive`: how new weights arrive, if they do.
  ServerVerdict judge(const ServerChoice&, Bytes occupied, const SyncPlan* receive) const;
  static void put(const ServerChoice&, Server&);

 private:
  void fold(const ServerPlan&, const SyncPlan* receive, ServerVerdict&) const;
  const Job& job_;
  const RoleRun* run_ = nullptr;
  ServerModel fp8_cache_;  ///< the model with an fp8 cache
  Timeline timeline_;      ///< the server's turns
  ModelCost cost_;
  const Gpu& gpu_;
};

/// What a GPU needs on which both take turns: each sees what the other holds. Equal to the estimate of the job.
Bytes need_together(const std::vector<Visit>& trainers, const ServerVerdict&);

}  // namespace oomplan
