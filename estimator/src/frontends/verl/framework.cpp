#include "frontends/framework.hpp"

#include <fmt/format.h>

#include "catalog/facts.hpp"
#include "frontends/verl/derive.hpp"
#include "layout/letters.hpp"

namespace oomplan::verl {
namespace {

/// From 0.9 on Megatron-Bridge makes the models (verl/trainer/config/engine/megatron.yaml: vanilla_mbridge).
std::vector<KnobProblem> problems(const Role& role) {
  const Trainer& t = role.trainer;
  std::vector<KnobProblem> out;
  if (role.engine == EngineKind::megatron) {
    if (compare_versions(t.framework_version, "0.5") < 0 || compare_versions(t.framework_version, "0.9") >= 0)
      out.push_back({"engine", "megatron", "fsdp2",
                     fmt::format("not supported yet: Megatron of verl {}; of 0.5 to 0.8 it is", t.framework_version)});
  } else if (t.layout.tensor > 1) {
    out.push_back(
        {"layout", fmt::format("'{}'", letters(t.layout)), "a layout without t", "verl has no tensor parallelism of FSDP"});
  }
  return out;
}

}  // namespace

// embedding_gradient: verl/workers/engine/fsdp/transformer_impl.py, 0.8. reshards_root: verl/workers/fsdp_workers.py,
// engine/fsdp/transformer_impl.py (_handle.reshard(True)). moves_parameters: verl/utils/fsdp_utils.py, 0.7.0
// (offload_fsdp_model_to_cpu). empties_cache: verl/workers/fsdp_workers.py and engine_workers.py, 0.7.0 (aggressive_empty_cache).
FrameworkRow framework_row() {
  return {.framework = Framework::verl,
          .loop = {.name = "verl",
                   .of_framework = true,
                   .budget_by_gpu = true,
                   .fuses_head = true,
                   .offloads_activations = true,
                   .packs = true,
                   .embedding_gradient = true,
                   .packed_embedding_gradient = true,
                   .reshards_root = true,
                   .moves_parameters = true,
                   .moves_optimizer = true,
                   .empties_cache = true,
                   .saves_plainly = false,
                   .facts = "verl",
                   .ipc = true,
                   .runs_megatron = true,
                   .pads_vocab = false,
                   .actor_loss = true},
          .releases = {.newest = "0.9.0", .oldest = "0.7", .last = "0.9.0"},
          .defaults = default_rows,
          .problems = problems,
          .server_version = pinned_server,
          .tensor_fact = "tensor_model_parallel_size",
          .derive_budget = derive_budget,
          .derive_role = derive_role,
          .derive_model = derive_model,
          .derive_update = derive_update};
}

}  // namespace oomplan::verl
