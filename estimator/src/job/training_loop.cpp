#include "job/training_loop.hpp"

#include <array>
#include <utility>

namespace oomplan {
namespace {

// embedding_gradient: areal/engine/fsdp_engine.py, 1.0.4; verl/workers/engine/fsdp/transformer_impl.py, 0.8; AgileRL
// agilerl/algorithms/core/base.py. AgileRL calls prepare_model_for_kbit_training without reentry, which asks for none
// (huggingface/peft src/peft/utils/other.py, 0.19.1).
// reshards_root: verl/workers/fsdp_workers.py, engine/fsdp/transformer_impl.py (_handle.reshard(True)).
// positions_by_row: AgileRL's _position_ids_from_mask.
// moves_parameters: verl/utils/fsdp_utils.py, 0.7.0 (offload_fsdp_model_to_cpu); AReaL pauses (FSDPEngine.offload,
// torch_memory_saver). empties_cache: verl/workers/fsdp_workers.py and engine_workers.py, 0.7.0 (aggressive_empty_cache); AReaL
// never does unless a role is offloaded. learns_at_once: AgileRL's learn(), agilerl/algorithms/grpo.py, 2.8.
constexpr std::array<std::pair<Framework, TrainingLoop>, 4> kLoops{{
    {Framework::torch, {}},
    {Framework::areal, {.of_framework = true, .embedding_gradient = true, .packed_embedding_gradient = true}},
    {Framework::verl,
     {.of_framework = true,
      .embedding_gradient = true,
      .packed_embedding_gradient = true,
      .reshards_root = true,
      .moves_parameters = true,
      .empties_cache = true}},
    {Framework::agilerl, {.of_framework = true, .embedding_gradient = true, .positions_by_row = true, .learns_at_once = true}},
}};

}  // namespace

const TrainingLoop& training_loop(Framework framework) {
  for (const auto& [name, loop] : kLoops)
    if (name == framework) return loop;
  return kLoops.front().second;
}

}  // namespace oomplan
