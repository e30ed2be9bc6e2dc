// What slime does where a job file is silent.
#include "frontends/defaults.hpp"
#include "frontends/framework.hpp"

namespace oomplan::slime {
namespace {

constexpr std::string_view kLossFile = "slime/backends/megatron_utils/loss.py";
constexpr std::string_view kActorFile = "slime/backends/megatron_utils/actor.py";
constexpr std::string_view kMegatronFile = "megatron/training/arguments.py";
constexpr std::string_view kEngineFile = "slime/backends/sglang_utils/sglang_engine.py";

}  // namespace

std::vector<DefaultRow> default_rows() {
  return {
      {Framework::slime, ">=0.3.1", For::megatron, "cross_entropy", "slime", kLossFile},
      {Framework::slime, ">=0.3.0,<0.3.1", For::megatron, "cross_entropy", "slime_whole", kLossFile},
      {Framework::slime, ">=0.2.2,<0.3.0", For::megatron, "cross_entropy", "slime_samples", kLossFile},
      {Framework::slime, "<0.2.2", For::megatron, "cross_entropy", "slime_divided", kLossFile},
      {Framework::slime, "", For::megatron, "weights_on_host", "1", kActorFile},
      {Framework::slime, "", For::trains, "optimizer", "adamw", kMegatronFile},
      {Framework::slime, "", For::trains, "recompute", "none", kMegatronFile},
      // enable_memory_saver without a copy of the weights: new ones come behind every step
      {Framework::slime, "", For::shared, "sleep", "2", kEngineFile},
  };
}

}  // namespace oomplan::slime
