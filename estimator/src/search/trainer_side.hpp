// Training configurations judged by themselves: what the trainers of a job need at their worst moment and what they hold between
// their turns. A configuration is one point; folding it costs microseconds and makes no strings.
#pragma once
#include <map>
#include <memory>
#include <vector>

#include "estimate/fold.hpp"
#include "search/axes.hpp"
#include "search/time_model.hpp"

namespace oomplan {

inline constexpr Bytes kNever = Bytes{1} << 60;

struct TrainerVerdict {
  TrainerPoint point;
  bool possible = true;  ///< false: the kernels or the engine do not run it
  Bytes need = 0;        ///< at the worst moment, all training processes of the GPU
  PhaseKind phase = PhaseKind::load;
  std::size_t role = 0;  ///< whose phase it is
  /// On shared GPUs: what every turn of the server finds, and what the trainers needed since the turn before.
  std::vector<Visit> visits;
  Bytes together = 0;  ///< on shared GPUs: with the server that leaves most; kNever when none starts
  double seconds = 0;
  int changes = 0;  ///< settings that differ from the job's
  int shape = 0;    ///< equal: they differ only in how much is spent
};

class TrainerSide {
 public:
  /// REQUIRES: all training roles sit on the same GPUs, with at most one server; job, catalog and runs outlive this.
  TrainerSide(const Job&, const Space&, const Catalog&, TapeStore&, const std::vector<RoleRun>& runs);
  bool empty() const { return leader_ == nullptr; }
  /// The role whose settings the points describe, as the job has it: the first that learns.
  const Role& leader() const { return *leader_; }
  TrainerVerdict judge(const TrainerPoint&);
  /// What a server receives from trainers that store their parameters so; null without weight updates.
  const SyncPlan* receive(DType storage);
  /// Writes the point into the trainers of a copy of the job.
  void put(const TrainerPoint&, Job&) const;

 private:
  /// Which settings of a role go with the leader's.
  struct Moves {
    bool tokens = true, recompute = true, form = true, parameters = true, optimizer = true, load = true, storage = true;
  };
  Moves moves_of(const Space&, const Role&, bool learns) const;
  void put(const TrainerPoint&, std::size_t role, Trainer&) const;
  /// The job with another storage format: weights are sent in other pieces.
  struct Stored {
    Job job;
    std::vector<RoleRun> runs;  ///< of job
  };
  const std::vector<RoleRun>& stored(DType);
  const ProcessConstants& constants(std::size_t i, std::int64_t world);
  /// Forgets the passes of the point before unless this one has the same.
  void keep_passes(const TrainerPoint&);
  const Job& job_;
  const Catalog& catalog_;
  TapeStore& store_;
  std::vector<Role> roles_;    ///< copies that points are written into
  std::vector<RoleRun> runs_;  ///< of roles_
  std::vector<Moves> moves_;   ///< of roles_
  GpuClass class_;             ///< the training seats of rank 0, which fills the buckets: it needs at least what the others do
  Timeline timeline_;
  std::size_t leads_ = 0;  ///< index of the leader
  const Role* leader_ = nullptr;
  ModelCost cost_;
  const Gpu& gpu_;
  struct Known {
    std::size_t role;
    std::int64_t world, context;
    ProcessConstants constants;
  };
  std::vector<Known> known_;
  TrainerPoint folded_;            ///< whose passes_ are known; those of the next point are often equal
  std::vector<PassSpans> passes_;  ///< of runs_
  std::map<DType, std::unique_ptr<Stored>> stored_;
};

}  // namespace oomplan
