// What PyTorch alone does where a job file is silent.
#include "frontends/defaults.hpp"
#include "frontends/framework.hpp"

namespace oomplan::torch {
namespace {

constexpr std::string_view kFlatFile = "torch/distributed/fsdp/_runtime_utils.py";
constexpr std::string_view kWrapFile = "torch/distributed/fsdp/wrap.py";
constexpr std::string_view kFullyShardFile = "torch/distributed/fsdp/_fully_shard/_fully_shard.py";

}  // namespace

std::vector<DefaultRow> default_rows() {
  return {
      // PyTorch alone: the library's defaults. In which format the parameters lie is the script's choice: it must be written.
      {Framework::torch, "", For::trains, "kernels", "hf_sdpa", "transformers/modeling_utils.py"},
      {Framework::torch, "", For::trains, "autocast", "false", kFullyShardFile},
      {Framework::torch, "", For::trains, "recompute", "none", "transformers/modeling_utils.py"},
      {Framework::torch, "", For::trains, "reentrant", "false", "torch/utils/checkpoint.py"},
      {Framework::torch, "", For::trains, "optimizer", "adamw", "torch/optim/adamw.py"},
      {Framework::torch, "", For::trains, "optimizer_form", "foreach", "torch/optim/optimizer.py"},
      {Framework::torch, "", For::trains, "clip", "false", "torch/optim/optimizer.py"},
      {Framework::torch, "", For::trains, "reshard_after_forward", "true", kFullyShardFile},
      {Framework::torch, "", For::unit_by_unit, "root_reshard", "false", kFullyShardFile},
      {Framework::torch, "", For::unit_by_unit, "wrap_embedding", "false", kFullyShardFile},
      {Framework::torch, "", For::unit_by_unit, "wrap_head", "false", kFullyShardFile},
      {Framework::torch, "", For::flat, "root_reshard", "false", kFlatFile},
      {Framework::torch, "", For::flat, "wrap_embedding", "false", kWrapFile},
      {Framework::torch, "", For::flat, "wrap_head", "false", kWrapFile},
      {Framework::torch, "", For::trains, "gradient_sync_every_micro_batch", "true", kFullyShardFile},
      {Framework::torch, "", For::trains, "offload", "[]", kFullyShardFile},
      {Framework::torch, "", For::trains, "cpu_offload_policy", "false", kFullyShardFile},
      {Framework::torch, "", For::policy, "head", "logprob_fp32", "transformers/modeling_utils.py"},
      {Framework::torch, "", For::values, "head", "value", "transformers/modeling_utils.py"},
  };
}

}  // namespace oomplan::torch
