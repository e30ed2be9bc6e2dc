// Serving configurations judged by themselves: does the engine start, what does it hold awake and asleep, how fast is it.
#pragma once
#include "search/axes.hpp"
#include "search/time_model.hpp"
#include "estimate/role_run.hpp"

namespace oomplan {

struct ServerVerdict {
  ServerChoice choice;
  ServerRefusal refusal = ServerRefusal::none;
  Bytes missing = 0;               ///< what the engine lacks to start
  Bytes need = 0;                  ///< at the worst moment, of this process alone
  Bytes asleep = 0;                ///< held while trainers have their turn
  std::int64_t requests = 0;       ///< of full length that a replica holds
  bool shortage = false;           ///< fewer than asked: requests queue or are preempted
  double seconds = 0;
};

class ServerSide {
 public:
  /// REQUIRES: job and runs outlive this.
  ServerSide(const Job&, const Catalog&, const std::vector<RoleRun>& runs);
  bool empty() const { return run_ == nullptr; }
  const Role& role() const { return *run_->role; }
  /// `occupied`: what the GPU's trainers hold when the engine starts.
  ServerVerdict judge(const ServerChoice&, Bytes occupied);
  static void put(const ServerChoice&, Server&);

 private:
  const Job& job_;
  const RoleRun* run_ = nullptr;
  ServerModel fp8_cache_;          ///< the model with an fp8 cache
  ModelCost cost_;
  const Gpu& gpu_;
};

}  // namespace oomplan
