// Which losses of Megatron's actors are whose.
#pragma once
#include <oomplan/job.hpp>

namespace oomplan {

constexpr bool is_slimes(MegatronLoss loss) {
  return loss == MegatronLoss::slime || loss == MegatronLoss::slime_whole || loss == MegatronLoss::slime_samples ||
         loss == MegatronLoss::slime_sliced || loss == MegatronLoss::slime_divided;
}

}  // namespace oomplan
