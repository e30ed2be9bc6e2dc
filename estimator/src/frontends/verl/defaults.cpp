// What verl does where a job file is silent.
#include "frontends/defaults.hpp"
#include "frontends/framework.hpp"

namespace oomplan::verl {
namespace {

constexpr std::string_view kEngineFile = "verl/trainer/config/engine/fsdp.yaml";
constexpr std::string_view kMegatronFile = "verl/trainer/config/engine/megatron.yaml: vanilla_mbridge";
constexpr std::string_view kFsdpFile = "verl/utils/fsdp_utils.py";
constexpr std::string_view kModelFile = "verl/trainer/config/model/hf_model.yaml";
constexpr std::string_view kWorkerFile = "verl/workers/engine/fsdp/transformer_impl.py";
constexpr std::string_view kFlatFile = "torch/distributed/fsdp/_runtime_utils.py";
constexpr std::string_view kWrapFile = "torch/distributed/fsdp/wrap.py";

}  // namespace

std::vector<DefaultRow> default_rows() {
  return {
      // verl. #7095 put off the gradient reduction to the last micro-batch in 0.9.0; #7458 took it back.
      {Framework::verl, "", For::trains, "kernels", "hf_flash", kModelFile},
      {Framework::verl, "", For::trains, "precision.storage", "fp32", kEngineFile},
      {Framework::verl, "", For::trains, "precision.compute", "bf16", kWorkerFile},
      {Framework::verl, "", For::trains, "precision.reduce", "fp32", kWorkerFile},
      {Framework::verl, "", For::trains, "autocast", "true", kWorkerFile},
      {Framework::verl, "", For::trains, "recompute", "full", kModelFile},
      {Framework::verl, "", For::trains, "reentrant", "false", kWorkerFile},
      {Framework::verl, "", For::trains, "optimizer", "adamw", "verl/workers/config/optimizer.py"},
      {Framework::verl, "", For::trains, "optimizer_form", "foreach", "verl/workers/config/optimizer.py"},
      {Framework::verl, "", For::trains, "weight_decay", "0.01", "verl/workers/config/optimizer.py"},
      {Framework::verl, "", For::trains, "clip", "true", "verl/workers/config/optimizer.py"},
      {Framework::verl, "", For::trains, "reshard_after_forward", "true", kEngineFile},
      {Framework::verl, "", For::unit_by_unit, "root_reshard", "true", kFsdpFile},
      {Framework::verl, "", For::unit_by_unit, "wrap_embedding", "true", kFsdpFile},
      {Framework::verl, "<0.7.1", For::unit_by_unit, "wrap_head", "false", kFsdpFile},  // until #5516 of March 2026
      {Framework::verl, ">=0.7.1", For::unit_by_unit, "wrap_head", "true", kFsdpFile},
      {Framework::verl, "", For::flat, "root_reshard", "false", kFlatFile},
      {Framework::verl, "", For::flat, "wrap_embedding", "false", kWrapFile},
      {Framework::verl, "", For::flat, "wrap_head", "false", kWrapFile},
      {Framework::verl, "==0.9.0", For::trains, "gradient_sync_every_micro_batch", "false", kWorkerFile},
      {Framework::verl, "!=0.9.0", For::trains, "gradient_sync_every_micro_batch", "true", kWorkerFile},
      {Framework::verl, "", For::trains, "offload", "[]", kEngineFile},
      {Framework::verl, "", For::reference, "cpu_offload_policy", "true", kWorkerFile},
      {Framework::verl, "", For::policy, "head", "verl_flash_ce", "verl/utils/torch_functional.py"},
      {Framework::verl, "", For::values, "head", "value", kWorkerFile},
      {Framework::verl, "<0.9", For::megatron, "models_by", "mbridge", kMegatronFile},
      {Framework::verl, ">=0.9", For::megatron, "models_by", "megatron-bridge", kMegatronFile},
      {Framework::verl, "", For::trains, "tokens_per_micro_batch", "16k", "verl/trainer/config/actor/actor.yaml"},
      {Framework::verl, "", For::sglang, "mem_fraction_static", "", "gpu_memory_utilization"},
      {Framework::verl, "", For::vllm, "gpu_memory_utilization", "", "gpu_memory_utilization"},
      {Framework::verl, "", For::servers, "batched_tokens", "", "max_num_batched_tokens"},
      {Framework::verl, "", For::servers, "max_running_requests", "", "max_num_seqs"},
      {Framework::verl, "", For::servers, "enforce_eager", "", "enforce_eager"},
      {Framework::verl, "", For::shared, "sleep", "", "sleep_level"},
  };
}

}  // namespace oomplan::verl
