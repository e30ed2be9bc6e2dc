// Which layouts an engine can run a model on, and why not the others.
//
// The rules are the frameworks' own checks (areal/engine/fsdp_utils/parallel.py, areal/models/transformers/ulyssess_patch.py,
// verl/utils/ulysses.py, vllm/config, sglang/srt/model_executor); each refusal says which rule and with which numbers.
#pragma once
#include <string>
#include <vector>

#include <oomplan/job.hpp>

namespace oomplan {

/// What a layout divides. 0: does not apply (no attention, no experts, unknown model).
struct ModelShape {
  std::int64_t heads = 0, kv_heads = 0;
  std::int64_t experts = 0, layers = 0;
  std::int64_t attention_data = 1;  ///< of a server: Server::attention_data
};

/// One sentence a broken rule; empty when the engine takes the layout for this model.
std::vector<std::string> broken_rules(const Layout&, EngineKind, const ModelShape&);

/// Ulysses degrees of FSDP on so many GPUs: divisors of the GPUs that the heads allow, ascending. 40 heads on 32 GPUs: 1, 2,
/// 4, 8.
std::vector<std::int64_t> ulysses_degrees(std::int64_t gpus, const ModelShape&);
/// Tensor-parallel degrees of a server on so many GPUs, ascending.
std::vector<std::int64_t> tensor_degrees(std::int64_t gpus, const ModelShape&);

}  // namespace oomplan
