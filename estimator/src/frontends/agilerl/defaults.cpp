// What AgileRL does where a job file is silent.
#include "frontends/defaults.hpp"
#include "frontends/framework.hpp"

namespace oomplan::agilerl {
namespace {

constexpr std::string_view kBaseFile = "agilerl/algorithms/core/base.py";
constexpr std::string_view kUtilsFile = "agilerl/utils/llm_utils.py";

}  // namespace

std::vector<DefaultRow> default_rows() {
  return {
      // AgileRL, one process on one GPU: flash-attention is no dependency, so SDPA; the base lies on the host while vLLM is
      // awake.
      {Framework::agilerl, "", For::trains, "kernels", "hf_sdpa", kUtilsFile},
      {Framework::agilerl, "", For::trains, "liger", "[rope, rms_norm, swiglu]", kBaseFile},
      {Framework::agilerl, "", For::trains, "liger_version", "0.8.1", kBaseFile},
      {Framework::agilerl, "", For::trains, "precision.storage", "bf16", kUtilsFile},
      {Framework::agilerl, "", For::trains, "precision.compute", "bf16", kUtilsFile},
      {Framework::agilerl, "", For::trains, "precision.reduce", "bf16", kUtilsFile},
      {Framework::agilerl, "", For::trains, "autocast", "true", kBaseFile},
      {Framework::agilerl, "", For::trains, "recompute", "full", kBaseFile},
      {Framework::agilerl, "", For::trains, "reentrant", "false", kBaseFile},
      {Framework::agilerl, "", For::trains, "optimizer", "adamw", kBaseFile},
      {Framework::agilerl, "", For::trains, "optimizer_form", "foreach", kBaseFile},
      {Framework::agilerl, "", For::trains, "clip", "true", kBaseFile},
      {Framework::agilerl, "", For::trains, "lora.frozen_copies", "1", kBaseFile},
      {Framework::agilerl, "", For::trains, "step_every_micro_batch", "true", "agilerl/algorithms/grpo.py"},
      // responses that end early are padded; the mask goes to every forward pass, and SDPA makes a square of it
      {Framework::agilerl, "", For::trains, "padding_mask", "true", kBaseFile},
      {Framework::agilerl, "", For::trains, "offload", "[parameters]", kBaseFile},
      {Framework::agilerl, "", For::trains, "cpu_offload_policy", "false", kBaseFile},
      {Framework::agilerl, "", For::policy, "head", "agilerl_fused", "agilerl/algorithms/core/llm_ops/fused_logprobs.py"},
      {Framework::agilerl, "", For::vllm, "gpu_memory_utilization", "0.3", "agilerl/utils/algo_utils.py"},
      {Framework::agilerl, "", For::vllm, "max_running_requests", "8", "agilerl/utils/algo_utils.py"},
      {Framework::agilerl, "", For::vllm, "lora.slots", "1", "agilerl/utils/algo_utils.py"},
      {Framework::agilerl, "", For::shared, "sleep", "1", "agilerl/utils/algo_utils.py"},
  };
}

}  // namespace oomplan::agilerl
