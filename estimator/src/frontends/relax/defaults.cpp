// What Relax does where a job file is silent.
#include "frontends/defaults.hpp"
#include "frontends/framework.hpp"

namespace oomplan::relax {
namespace {

constexpr std::string_view kLossFile = "relax/utils/training/ppo_utils.py: calculate_log_probs_and_entropy";
constexpr std::string_view kMegatronFile = "megatron/training/arguments.py";
constexpr std::string_view kEngineFile = "relax/backends/sglang/sglang_engine.py";

}  // namespace

std::vector<DefaultRow> default_rows() {
  return {
      {Framework::relax, ">=2026.08", For::megatron, "cross_entropy", "slime_sliced", kLossFile},
      {Framework::relax, "<2026.08", For::megatron, "cross_entropy", "slime_samples", kLossFile},
      {Framework::relax, "", For::trains, "optimizer", "adamw", kMegatronFile},
      {Framework::relax, "", For::trains, "recompute", "none", kMegatronFile},
      // enable_memory_saver without a copy of the weights: new ones come behind every step
      {Framework::relax, "", For::shared, "sleep", "2", kEngineFile},
  };
}

}  // namespace oomplan::relax
