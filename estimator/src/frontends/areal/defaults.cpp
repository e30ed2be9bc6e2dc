// What AReaL does where a job file is silent.
#include "frontends/defaults.hpp"
#include "frontends/framework.hpp"

namespace oomplan::areal {
namespace {

constexpr std::string_view kArgsFile = "areal/api/cli_args.py";
constexpr std::string_view kEngineFile = "areal/engine/fsdp_engine.py";
constexpr std::string_view kFsdpFile = "areal/engine/fsdp_utils/__init__.py";
constexpr std::string_view kLogprobsFile = "areal/utils/functional/vocab_parallel.py";

}  // namespace

std::vector<DefaultRow> default_rows() {
  return {
      // AReaL. Parameters were stored in `dtype` until optimizer_dtype came with 2.0.0.
      {Framework::areal, "", For::trains, "kernels", "hf_flash", kArgsFile},
      {Framework::areal, "<2.0", For::trains, "precision.storage", "bf16", kEngineFile},
      {Framework::areal, ">=2.0", For::trains, "precision.storage", "fp32", kArgsFile},
      {Framework::areal, "", For::trains, "precision.compute", "bf16", kArgsFile},
      {Framework::areal, "", For::trains, "precision.reduce", "fp32", kArgsFile},
      {Framework::areal, "", For::trains, "autocast", "false", kEngineFile},
      {Framework::areal, "", For::trains, "recompute", "none", kArgsFile},
      {Framework::areal, "", For::trains, "reentrant", "false", kEngineFile},
      {Framework::areal, "", For::trains, "optimizer", "adamw", kArgsFile},
      {Framework::areal, "", For::trains, "optimizer_form", "fused", kEngineFile},
      {Framework::areal, "", For::trains, "weight_decay", "0.01", kArgsFile},
      {Framework::areal, "", For::trains, "clip", "true", kArgsFile},
      {Framework::areal, "", For::trains, "reshard_after_forward", "true", kFsdpFile},
      {Framework::areal, "", For::trains, "root_reshard", "true", kFsdpFile},
      {Framework::areal, "", For::trains, "wrap_embedding", "true", kFsdpFile},
      {Framework::areal, "", For::trains, "wrap_head", "false", kFsdpFile},
      {Framework::areal, "", For::trains, "gradient_sync_every_micro_batch", "true", kEngineFile},
      {Framework::areal, "", For::trains, "offload", "[]", kArgsFile},
      {Framework::areal, "", For::trains, "cpu_offload_policy", "false", kArgsFile},
      {Framework::areal, "", For::trains, "memory_efficient_load", "false", kArgsFile},
      {Framework::areal, "", For::policy, "head", "areal_compiled", kLogprobsFile},
      {Framework::areal, "<0.5.0", For::megatron, "cross_entropy", "areal_whole", "areal/utils/functional.py"},
      {Framework::areal, "", For::values, "head", "value", kEngineFile},
      {Framework::areal, "", For::sglang, "mem_fraction_static", "", "mem_fraction_static"},
      {Framework::areal, "", For::sglang, "max_model_len", "", "sglang_context_length"},
      {Framework::areal, "", For::sglang, "batched_tokens", "", "sglang_max_prefill_tokens"},  // chunked prefill is off
      {Framework::areal, "", For::vllm, "gpu_memory_utilization", "", "gpu_memory_utilization"},
      {Framework::areal, "", For::vllm, "max_model_len", "", "vllm_max_model_len"},
      {Framework::areal, "", For::vllm, "max_running_requests", "", "vllm_max_num_seqs"},
      {Framework::areal, "", For::vllm, "enforce_eager", "", "vllm_enforce_eager"},
      {Framework::areal, "", For::shared, "sleep", "1", "areal/trainer/rl_trainer.py"},
  };
}

}  // namespace oomplan::areal
