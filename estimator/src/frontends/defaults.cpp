#include "frontends/defaults.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "job/names.hpp"
#include "units/sizes.hpp"

namespace oomplan {
namespace {

constexpr auto kAreal = Framework::areal;
constexpr auto kVerl = Framework::verl;
constexpr auto kTorch = Framework::torch;
constexpr auto kAgile = Framework::agilerl;

constexpr std::string_view kArealArgs = "areal/api/cli_args.py";
constexpr std::string_view kArealEngine = "areal/engine/fsdp_engine.py";
constexpr std::string_view kArealFsdp = "areal/engine/fsdp_utils/__init__.py";
constexpr std::string_view kArealLogprobs = "areal/utils/functional/vocab_parallel.py";
constexpr std::string_view kVerlEngine = "verl/trainer/config/engine/fsdp.yaml";
constexpr std::string_view kVerlFsdp = "verl/utils/fsdp_utils.py";
constexpr std::string_view kVerlModel = "verl/trainer/config/model/hf_model.yaml";
constexpr std::string_view kVerlWorker = "verl/workers/engine/fsdp/transformer_impl.py";
constexpr std::string_view kFlat = "torch/distributed/fsdp/_runtime_utils.py";
constexpr std::string_view kWrap = "torch/distributed/fsdp/wrap.py";
constexpr std::string_view kAgileBase = "agilerl/algorithms/core/base.py";
constexpr std::string_view kAgileUtils = "agilerl/utils/llm_utils.py";
constexpr std::string_view kFullyShard = "torch/distributed/fsdp/_fully_shard/_fully_shard.py";

std::vector<DefaultRow> make_rows() {
  return {
      // AReaL. Parameters were stored in `dtype` until optimizer_dtype came with 2.0.0.
      {kAreal, "", For::trains, "kernels", "hf_flash", kArealArgs},
      {kAreal, "<2.0", For::trains, "precision.storage", "bf16", kArealEngine},
      {kAreal, ">=2.0", For::trains, "precision.storage", "fp32", kArealArgs},
      {kAreal, "", For::trains, "precision.compute", "bf16", kArealArgs},
      {kAreal, "", For::trains, "precision.reduce", "fp32", kArealArgs},
      {kAreal, "", For::trains, "autocast", "false", kArealEngine},
      {kAreal, "", For::trains, "recompute", "none", kArealArgs},
      {kAreal, "", For::trains, "reentrant", "false", kArealEngine},
      {kAreal, "", For::trains, "optimizer", "adamw", kArealArgs},
      {kAreal, "", For::trains, "optimizer_form", "fused", kArealEngine},
      {kAreal, "", For::trains, "weight_decay", "0.01", kArealArgs},
      {kAreal, "", For::trains, "clip", "true", kArealArgs},
      {kAreal, "", For::trains, "reshard_after_forward", "true", kArealFsdp},
      {kAreal, "", For::trains, "root_reshard", "true", kArealFsdp},
      {kAreal, "", For::trains, "wrap_embedding", "true", kArealFsdp},
      {kAreal, "", For::trains, "wrap_head", "false", kArealFsdp},
      {kAreal, "", For::trains, "gradient_sync_every_micro_batch", "true", kArealEngine},
      {kAreal, "", For::trains, "offload", "[]", kArealArgs},
      {kAreal, "", For::trains, "cpu_offload_policy", "false", kArealArgs},
      {kAreal, "", For::trains, "memory_efficient_load", "false", kArealArgs},
      {kAreal, "", For::policy, "head", "areal_compiled", kArealLogprobs},
      {kAreal, "<0.5.0", For::megatron, "cross_entropy", "areal_whole", "areal/utils/functional.py"},
      {kAreal, "", For::values, "head", "value", kArealEngine},
      {kAreal, "", For::sglang, "mem_fraction_static", "", "mem_fraction_static"},
      {kAreal, "", For::sglang, "max_model_len", "", "sglang_context_length"},
      {kAreal, "", For::sglang, "batched_tokens", "", "sglang_max_prefill_tokens"},  // chunked prefill is off
      {kAreal, "", For::vllm, "gpu_memory_utilization", "", "gpu_memory_utilization"},
      {kAreal, "", For::vllm, "max_model_len", "", "vllm_max_model_len"},
      {kAreal, "", For::vllm, "max_running_requests", "", "vllm_max_num_seqs"},
      {kAreal, "", For::vllm, "enforce_eager", "", "vllm_enforce_eager"},
      {kAreal, "", For::shared, "sleep", "1", "areal/trainer/rl_trainer.py"},
      // verl. #7095 put off the gradient reduction to the last micro-batch in 0.9.0; #7458 took it back.
      {kVerl, "", For::trains, "kernels", "hf_flash", kVerlModel},
      {kVerl, "", For::trains, "precision.storage", "fp32", kVerlEngine},
      {kVerl, "", For::trains, "precision.compute", "bf16", kVerlWorker},
      {kVerl, "", For::trains, "precision.reduce", "fp32", kVerlWorker},
      {kVerl, "", For::trains, "autocast", "true", kVerlWorker},
      {kVerl, "", For::trains, "recompute", "full", kVerlModel},
      {kVerl, "", For::trains, "reentrant", "false", kVerlWorker},
      {kVerl, "", For::trains, "optimizer", "adamw", "verl/workers/config/optimizer.py"},
      {kVerl, "", For::trains, "optimizer_form", "foreach", "verl/workers/config/optimizer.py"},
      {kVerl, "", For::trains, "weight_decay", "0.01", "verl/workers/config/optimizer.py"},
      {kVerl, "", For::trains, "clip", "true", "verl/workers/config/optimizer.py"},
      {kVerl, "", For::trains, "reshard_after_forward", "true", kVerlEngine},
      {kVerl, "", For::unit_by_unit, "root_reshard", "true", kVerlFsdp},
      {kVerl, "", For::unit_by_unit, "wrap_embedding", "true", kVerlFsdp},
      {kVerl, "<0.7.1", For::unit_by_unit, "wrap_head", "false", kVerlFsdp},  // until #5516 of March 2026
      {kVerl, ">=0.7.1", For::unit_by_unit, "wrap_head", "true", kVerlFsdp},
      {kVerl, "", For::flat, "root_reshard", "false", kFlat},
      {kVerl, "", For::flat, "wrap_embedding", "false", kWrap},
      {kVerl, "", For::flat, "wrap_head", "false", kWrap},
      {kVerl, "==0.9.0", For::trains, "gradient_sync_every_micro_batch", "false", kVerlWorker},
      {kVerl, "!=0.9.0", For::trains, "gradient_sync_every_micro_batch", "true", kVerlWorker},
      {kVerl, "", For::trains, "offload", "[]", kVerlEngine},
      {kVerl, "", For::reference, "cpu_offload_policy", "true", kVerlWorker},
      {kVerl, "", For::policy, "head", "verl_flash_ce", "verl/utils/torch_functional.py"},
      {kVerl, "", For::values, "head", "value", kVerlWorker},
      {kVerl, "", For::trains, "tokens_per_micro_batch", "16k", "verl/trainer/config/actor/actor.yaml"},
      {kVerl, "", For::sglang, "mem_fraction_static", "", "gpu_memory_utilization"},
      {kVerl, "", For::vllm, "gpu_memory_utilization", "", "gpu_memory_utilization"},
      {kVerl, "", For::servers, "batched_tokens", "", "max_num_batched_tokens"},
      {kVerl, "", For::servers, "max_running_requests", "", "max_num_seqs"},
      {kVerl, "", For::servers, "enforce_eager", "", "enforce_eager"},
      {kVerl, "", For::shared, "sleep", "", "sleep_level"},
      // AgileRL, one process on one GPU: flash-attention is no dependency, so SDPA; the base lies on the host while vLLM is
      // awake.
      {kAgile, "", For::trains, "kernels", "hf_sdpa", kAgileUtils},
      {kAgile, "", For::trains, "liger", "[rope, rms_norm, swiglu]", kAgileBase},
      {kAgile, "", For::trains, "liger_version", "0.8.1", kAgileBase},
      {kAgile, "", For::trains, "precision.storage", "bf16", kAgileUtils},
      {kAgile, "", For::trains, "precision.compute", "bf16", kAgileUtils},
      {kAgile, "", For::trains, "precision.reduce", "bf16", kAgileUtils},
      {kAgile, "", For::trains, "autocast", "true", kAgileBase},
      {kAgile, "", For::trains, "recompute", "full", kAgileBase},
      {kAgile, "", For::trains, "reentrant", "false", kAgileBase},
      {kAgile, "", For::trains, "optimizer", "adamw", kAgileBase},
      {kAgile, "", For::trains, "optimizer_form", "foreach", kAgileBase},
      {kAgile, "", For::trains, "clip", "true", kAgileBase},
      {kAgile, "", For::trains, "lora.frozen_copies", "1", kAgileBase},
      {kAgile, "", For::trains, "step_every_micro_batch", "true", "agilerl/algorithms/grpo.py"},
      // responses that end early are padded; the mask goes to every forward pass, and SDPA makes a square of it
      {kAgile, "", For::trains, "padding_mask", "true", kAgileBase},
      {kAgile, "", For::trains, "offload", "[parameters]", kAgileBase},
      {kAgile, "", For::trains, "cpu_offload_policy", "false", kAgileBase},
      {kAgile, "", For::policy, "head", "agilerl_fused", "agilerl/algorithms/core/llm_ops/fused_logprobs.py"},
      {kAgile, "", For::vllm, "gpu_memory_utilization", "0.3", "agilerl/utils/algo_utils.py"},
      {kAgile, "", For::vllm, "max_running_requests", "8", "agilerl/utils/algo_utils.py"},
      {kAgile, "", For::vllm, "lora.slots", "1", "agilerl/utils/algo_utils.py"},
      {kAgile, "", For::shared, "sleep", "1", "agilerl/utils/algo_utils.py"},
      // PyTorch alone: the library's defaults. In which format the parameters lie is the script's choice: it must be written.
      {kTorch, "", For::trains, "kernels", "hf_sdpa", "transformers/modeling_utils.py"},
      {kTorch, "", For::trains, "autocast", "false", kFullyShard},
      {kTorch, "", For::trains, "recompute", "none", "transformers/modeling_utils.py"},
      {kTorch, "", For::trains, "reentrant", "false", "torch/utils/checkpoint.py"},
      {kTorch, "", For::trains, "optimizer", "adamw", "torch/optim/adamw.py"},
      {kTorch, "", For::trains, "optimizer_form", "foreach", "torch/optim/optimizer.py"},
      {kTorch, "", For::trains, "clip", "false", "torch/optim/optimizer.py"},
      {kTorch, "", For::trains, "reshard_after_forward", "true", kFullyShard},
      {kTorch, "", For::unit_by_unit, "root_reshard", "false", kFullyShard},
      {kTorch, "", For::unit_by_unit, "wrap_embedding", "false", kFullyShard},
      {kTorch, "", For::unit_by_unit, "wrap_head", "false", kFullyShard},
      {kTorch, "", For::flat, "root_reshard", "false", kFlat},
      {kTorch, "", For::flat, "wrap_embedding", "false", kWrap},
      {kTorch, "", For::flat, "wrap_head", "false", kWrap},
      {kTorch, "", For::trains, "gradient_sync_every_micro_batch", "true", kFullyShard},
      {kTorch, "", For::trains, "offload", "[]", kFullyShard},
      {kTorch, "", For::trains, "cpu_offload_policy", "false", kFullyShard},
      {kTorch, "", For::policy, "head", "logprob_fp32", "transformers/modeling_utils.py"},
      {kTorch, "", For::values, "head", "value", "transformers/modeling_utils.py"},
  };
}

bool shares_gpus(const Job& job, const Role& role) {
  return !role.beside.empty() ||
         std::any_of(job.roles.begin(), job.roles.end(), [&](const Role& other) { return other.beside == role.name; });
}
bool is_value_model(const Role& r) { return r.kind == RoleKind::critic || r.kind == RoleKind::reward; }

}  // namespace

const std::vector<DefaultRow>& default_rows() {
  static const std::vector<DefaultRow> rows = make_rows();
  return rows;
}

std::string_view newest_version(Framework f) { return f == kAreal ? "1.0.4" : f == kVerl ? "0.9.0" : f == kAgile ? "2.8" : ""; }
std::string_view oldest_version(Framework f) { return f == kAreal ? "0.2" : f == kVerl ? "0.7" : f == kAgile ? "2.8" : ""; }
std::string_view last_known_version(Framework f) { return f == kAreal ? "2.0.0" : newest_version(f); }

namespace {

/// Engines that an AReaL release installs: pyproject.toml and, from 1.0.3 on for vLLM, pyproject.vllm.toml of its tag.
struct Pin {
  std::string_view versions, sglang, vllm;
};
constexpr Pin kPins[] = {
    {">=1.0.4", "0.5.10", "0.19.1"},       {">=1.0.2,<1.0.4", "0.5.9", "0.17.0"}, {">=0.5.2,<1.0.2", "0.5.7", "0.14.0"},
    {">=0.4.1,<0.5.2", "0.5.5", "0.11.0"}, {">=0.3.4,<0.4.1", "0.5.2", "0.10.2"},
    {">=0.3.0,<0.3.1", "0.4.6", "0.8.4"},  {">=0.2.0,<0.3.0", "0.4.0", "0.6.3"},  // Dockerfile
};

}  // namespace

std::string server_version(Framework f, std::string_view version, EngineKind engine, const Facts& facts) {
  if (f == kAreal)
    for (const auto& pin : kPins)
      if (version_matches(version, pin.versions)) return std::string(engine == EngineKind::sglang ? pin.sglang : pin.vllm);
  const auto known = facts.known_versions(spelling(engine));
  return known.empty() ? std::string{} : known.back();
}

DefaultValue value_of(const DefaultRow& row, std::string_view version, KnobType type, const Facts& facts) {
  if (!row.value.empty()) return {std::string(row.value), std::string(row.source)};
  const Fact& fact = facts.find(spelling(row.framework), row.source, {std::string(version), {}, {}});
  const auto whole = static_cast<std::int64_t>(fact.value);
  if (type == KnobType::number) return {number_text(fact.value), fact.source};
  if (type == KnobType::flag) return {whole != 0 ? "true" : "false", fact.source};
  return {count_text(whole), fact.source};
}

std::string framework_text(Framework f, std::string_view version) {
  const std::string_view name = f == kAreal ? "AReaL" : f == kVerl ? "verl" : f == kAgile ? "AgileRL" : "PyTorch";
  return version.empty() ? std::string(name) : fmt::format("{} {}", name, version);
}

bool applies(const DefaultRow& row, const Job& job, const Role& role) {
  const Framework framework = role.trainer.framework;
  if (row.framework != framework || !version_matches(role.trainer.framework_version, row.versions)) return false;
  if (role.serves() && job.kind == JobKind::serving) return false;  // a server without a framework around it
  switch (row.roles) {
    case For::trains:
      return !role.serves();
    case For::unit_by_unit:
      return !role.serves() && role.engine != EngineKind::fsdp1;
    case For::flat:
      return role.engine == EngineKind::fsdp1;
    case For::policy:
      return !role.serves() && !is_value_model(role);
    case For::values:
      return !role.serves() && is_value_model(role);
    case For::reference:
      return role.kind == RoleKind::reference && !role.serves();
    case For::megatron:
      return role.engine == EngineKind::megatron;
    case For::sglang:
      return role.engine == EngineKind::sglang;
    case For::vllm:
      return role.engine == EngineKind::vllm;
    case For::servers:
      return role.serves();
    case For::shared:
      return role.serves() && shares_gpus(job, role);
  }
  return false;
}

}  // namespace oomplan
