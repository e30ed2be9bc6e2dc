// Training configurations judged by themselves: what the trainers of a job need at their worst moment and what they hold between
// their turns. A configuration is one point; folding it costs microseconds and makes no strings.
#pragma once
#include <memory>
#include <vector>

#include "estimate/fold.hpp"
#include "search/axes.hpp"
#include "search/time_model.hpp"

namespace oomplan {

struct TrainerVerdict {
  TrainerPoint point;
  Bytes need = 0;                  ///< at the worst moment, all training processes of the GPU
  Bytes idle = 0;                  ///< held while others have their turn (reserved, not only allocated)
  PhaseKind phase = PhaseKind::load;
  std::size_t role = 0;            ///< whose phase it is
  double seconds = 0;
};

class TrainerSide {
 public:
  /// REQUIRES: all training roles sit on the same GPUs; job, catalog and runs outlive this.
  TrainerSide(const Job&, const Catalog&, TapeStore&, const std::vector<RoleRun>& runs);
  bool empty() const { return seats_.empty(); }
  /// The role whose settings the points describe: the first that learns.
  const Role& leader() const { return *leader_; }
  TrainerVerdict judge(const TrainerPoint&);
  /// Writes the point into a role's Trainer.
  static void put(const TrainerPoint&, Trainer&, bool learns);

 private:
  const ProcessConstants& constants(std::size_t i, std::int64_t world);
  const Job& job_;
  const Catalog& catalog_;
  TapeStore& store_;
  std::vector<Role> roles_;        ///< copies that points are written into
  std::vector<RoleRun> runs_;      ///< of roles_
  std::vector<std::size_t> seats_; ///< indices of roles_ that train
  GpuClass class_;
  Timeline timeline_;
  const Role* leader_ = nullptr;
  ModelCost cost_;
  const Gpu& gpu_;
  struct Known {
    std::size_t role;
    std::int64_t world, context;
    ProcessConstants constants;
  };
  std::vector<Known> known_;
};

}  // namespace oomplan
