// Recomputation, optimizers and formats that Megatron refuses: megatron/training/arguments.py (validate_args),
// megatron/core/transformer/transformer_config.py (__post_init__) and megatron/core/optimizer/optimizer_config.py, 0.16.1.
#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "frontends/megatron/run.hpp"
#include "units/enums.hpp"

namespace oomplan::megatron {
namespace {

constexpr const char* kGranularity = "recompute_granularity";

void check_full(const Arguments& a, const Run& r, Complaints& out) {
  if (!a.has("recompute_method"))
    out.add(a.place("recompute_method"), "nothing", "block or uniform", "full recomputation needs a method");
  if (!a.has("recompute_num_layers"))
    out.add(a.place("recompute_num_layers"), "nothing",
            fmt::format("1 to {} layers", std::max<std::int64_t>(1, r.layers / r.pipeline)),
            "full recomputation needs the number of layers");
  if (a.on("moe_layer_recompute")) out.add(a.place("moe_layer_recompute"), "the flag", "nothing beside full recomputation", "");
}

void check_selective(const Arguments& a, Complaints& out) {
  for (const char* const name : {"recompute_method", "recompute_num_layers"})
    if (a.has(name))
      out.add(a.place(name), "the flag", "nothing beside selective recomputation", "it belongs to full recomputation");
  static const std::vector<std::string> known{"core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts"};
  const auto modules = a.items("recompute_modules");
  const auto has = [&](const char* name) { return std::find(modules.begin(), modules.end(), name) != modules.end(); };
  for (const auto& m : modules)
    if (std::find(known.begin(), known.end(), m) == known.end())
      out.add(a.place("recompute_modules"), fmt::format("'{}'", m), list_of(known), "", nearest(m, known));
  if (has("moe_act") && !a.on("moe_grouped_gemm"))
    out.add(a.place("recompute_modules"), "'moe_act'", "--moe-grouped-gemm beside it", "");
  if (has("mla_up_proj") && !a.on("multi_latent_attention"))
    out.add(a.place("recompute_modules"), "'mla_up_proj'", "--multi-latent-attention beside it", "");
  if (has("shared_experts") && a.on("moe_shared_expert_overlap"))
    out.add(a.place("recompute_modules"), "'shared_experts'", "no --moe-shared-expert-overlap beside it", "");
}

}  // namespace

void check_recompute(const Arguments& a, const Run& r, Complaints& out) {
  const bool selective = a.on("recompute_activations") || a.text(kGranularity) == "selective";
  const bool full = !selective && a.text(kGranularity) == "full";
  if (full) check_full(a, r, out);
  if (selective) check_selective(a, out);
  if (a.on("distribute_saved_activations")) {
    if (r.tensor == 1)
      out.add(a.place("distribute_saved_activations"), "the flag", "a tensor-parallel size above 1",
              "activations are distributed over tensor-parallel ranks");
    if (!full)
      out.add(a.place("distribute_saved_activations"), "the flag", "--recompute-granularity full beside it",
              "only the inputs of full recomputation are distributed");
    if (full && r.sequence_parallel)
      out.add(a.place("distribute_saved_activations"), "the flag", "nothing beside --sequence-parallel",
              "sequence parallelism distributes them already");
  }
  const std::int64_t offloaded = a.whole_or("cpu_offloading_num_layers", 0);
  if (offloaded == 0) return;
  if (offloaded < 0 || offloaded >= r.layers)
    out.add(a.place("cpu_offloading_num_layers"), fmt::format("{}", offloaded), fmt::format("fewer than the {} layers", r.layers),
            "");
  if (r.pipeline > 1)
    out.add(a.place("cpu_offloading_num_layers"), fmt::format("{} stages", r.pipeline), "a pipeline-parallel size of 1",
            "layers are offloaded without a pipeline only");
  if (full || selective)
    out.add(a.place("cpu_offloading_num_layers"), "beside recomputation", "one of them",
            "layers are offloaded or computed again");
}

/// ModelParallelConfig.__post_init__.
void check_deferral(const Arguments& a, const Run& r, Complaints& out) {
  if (!a.on("defer_embedding_wgrad_compute")) return;
  if (r.pipeline == 1)
    out.add(a.place("defer_embedding_wgrad_compute"), "the flag", "--pipeline-model-parallel-size above 1",
            "gradients are deferred into the end of a pipeline's schedule");
  if (!a.on("gradient_accumulation_fusion"))
    out.add(a.place("defer_embedding_wgrad_compute"), "--no-gradient-accumulation-fusion", "one of them",
            "deferred gradients are added up inside of their product");
  if (a.whole_or("wgrad_deferral_limit", 0) < 0)
    out.add(a.place("wgrad_deferral_limit"), a.value("wgrad_deferral_limit").dump(), "0 or more", "");
}

void check_optimizer(const Arguments& a, Complaints& out) {
  const bool distributed = a.on("use_distributed_optimizer"), fsdp = a.on("use_megatron_fsdp");
  const auto need = [&](const char* name, bool met, const char* expected, const char* why) {
    if (a.on(name) && !met) out.add(a.place(name), "the flag", expected, why);
  };
  need("overlap_param_gather", distributed || fsdp, "--use-distributed-optimizer beside it",
       "parameters are gathered where the optimizer is distributed, or by Megatron-FSDP");
  need("overlap_param_gather", a.on("overlap_grad_reduce"), "--overlap-grad-reduce beside it",
       "gathering parameters overlaps only where reducing gradients does");
  need("overlap_param_gather_with_optimizer_step", distributed, "--use-distributed-optimizer beside it", "");
  need("overlap_param_gather_with_optimizer_step", a.on("overlap_param_gather"), "--overlap-param-gather beside it", "");
  need("use_precision_aware_optimizer", distributed, "--use-distributed-optimizer beside it",
       "the precision-aware optimizer is a distributed one");
  need("use_precision_aware_optimizer", a.text("optimizer") == "adam", "--optimizer adam", "only Adam is precision-aware");
  need("optimizer_cpu_offload", a.on("use_precision_aware_optimizer"), "--use-precision-aware-optimizer beside it",
       "an optimizer on the host takes the precision-aware one's path");
  need("fp8_param_gather", distributed || fsdp || a.on("use_torch_fsdp2"), "--use-distributed-optimizer beside it", "");
  if (!a.on("use_precision_aware_optimizer"))
    for (const char* const name : {"main_grads_dtype", "main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"})
      if (a.text(name) != "fp32")
        out.add(a.place(name), fmt::format("'{}'", a.text(name)), "fp32, or --use-precision-aware-optimizer beside it",
                "only the precision-aware optimizer has other formats");
  if (a.text("optimizer").find("muon") != std::string::npos)
    for (const char* const name :
         {"overlap_grad_reduce", "overlap_param_gather", "use_distributed_optimizer", "use_torch_fsdp2", "use_megatron_fsdp"})
      if (a.on(name)) out.add(a.place(name), "the flag", "nothing beside Muon", "Megatron's Muon does not run with it yet");
}

/// TransformerConfig.__post_init__ about fp8 (megatron-core 0.16.1).
void check_fp8(const Arguments& a, const Run& r, Complaints& out) {
  const bool narrow = a.has("fp8"), delayed = a.text("fp8_recipe") == "delayed";
  for (const char* const name : {"moe_router_padding_for_quantization", "moe_router_padding_for_fp8"}) {
    if (!a.on(name)) continue;
    if (!narrow && !a.has("fp4")) out.add(a.place(name), "the flag", "--fp8-format beside it", "rows are padded for 8 bits");
    if (a.text("moe_token_dispatcher_type") == "allgather")
      out.add(a.place(name), "the allgather dispatcher", "another one", "it pads no rows");
  }
  if (a.on("optimizer_cpu_offload") && a.on("fp8_param_gather") && !delayed)
    out.add(a.place("fp8_param_gather"), "the flag", "--fp8-recipe delayed beside it",
            "an optimizer on the host has parameters in 8 bits with it only");
  if (!narrow || !a.on("first_last_layers_bf16")) return;
  if (delayed) out.add(a.place("first_last_layers_bf16"), "delayed scaling", "another --fp8-recipe", "it runs in all layers");
  const std::int64_t most = r.layers / std::max<std::int64_t>(1, r.pipeline);
  for (const char* const name : {"num_layers_at_start_in_bf16", "num_layers_at_end_in_bf16"})
    if (const std::int64_t n = a.whole_or(name, 1); n < 0 || n > most)
      out.add(a.place(name), fmt::format("{}", n), fmt::format("0 to {}, the layers of a pipeline stage", most), "");
}

/// validate_args and, what fails later, megatron/core/distributed/fsdp/src/megatron_fsdp/megatron_fsdp.py: start_param_sync
/// gathers the buffers of weights, which no_shard has not.
void check_fsdp(const Arguments& a, Complaints& out) {
  const bool fsdp = a.on("use_megatron_fsdp");
  if (a.on("fsdp_manual_registration") && !(fsdp && a.on("nccl_ub")))
    out.add(a.place("fsdp_manual_registration"), "the flag", "--use-megatron-fsdp and --use-nccl-ub beside it", "");
  if (!fsdp) return;
  const std::string strategy = a.text("data_parallel_sharding_strategy");
  if (strategy == "optim_grads_params" && a.has("check_weight_hash_across_dp_replicas_interval"))
    out.add(a.place("check_weight_hash_across_dp_replicas_interval"), "a number of steps", "nothing",
            "ranks that split parameters have no replicas to compare");
  if (strategy == "no_shard" && !a.on("overlap_param_gather"))
    out.add(a.place("use_megatron_fsdp"), "no_shard", "--overlap-param-gather and --overlap-grad-reduce beside it",
            "without them Megatron-FSDP ends behind the first step: it gathers buffers that are not there");
}

void check_formats(const Arguments& a, Complaints& out) {
  check_fsdp(a, out);
  if (a.on("bf16") && a.on("fp16")) out.add(a.place("fp16"), "beside --bf16", "one of them", "parameters have one 16-bit format");
  if (a.has("fp8") && a.has("fp4")) out.add(a.place("fp4"), "beside fp8", "one of them", "fp4 and fp8 exclude each other");
  if (a.on("fp4_param") && !a.has("fp4")) out.add(a.place("fp4_param"), "the flag", "--fp4-format beside it", "");
  if (a.on("bf16") && a.on("accumulate_allreduce_grads_in_fp32") && a.text("main_grads_dtype") != "fp32")
    out.add(a.place("main_grads_dtype"), fmt::format("'{}'", a.text("main_grads_dtype")), "fp32",
            "--accumulate-allreduce-grads-in-fp32 asks for fp32 gradients");
  if (a.on("fp16_lm_cross_entropy") && !a.on("fp16"))
    out.add(a.place("fp16_lm_cross_entropy"), "the flag", "--fp16 beside it", "a loss in fp16 goes with fp16");
  if (a.on("fp32_residual_connection") && !a.on("fp16") && !a.on("bf16"))
    out.add(a.place("fp32_residual_connection"), "the flag", "--bf16 or --fp16 beside it", "");
  if (a.whole_or("train_iters", 0) != 0 && a.whole_or("train_samples", 0) != 0)
    out.add(a.place("train_samples"), "beside --train-iters", "one of them", "training counts iterations or samples");
  const bool torch_fsdp = a.on("use_torch_fsdp2");
  const auto exclude = [&](const char* name, bool is_on) {
    if (torch_fsdp && is_on) out.add(a.place("use_torch_fsdp2"), fmt::format("beside {}", a.place(name)), "one of them", "");
  };
  exclude("pipeline_model_parallel_size", a.whole_or("pipeline_model_parallel_size", 1) > 1);
  exclude("expert_model_parallel_size", a.whole_or("expert_model_parallel_size", 1) > 1);
  exclude("use_distributed_optimizer", a.on("use_distributed_optimizer"));
  exclude("fp16", a.on("fp16"));
  const std::string format = a.text("ckpt_format");
  if (a.on("use_megatron_fsdp") && format != "fsdp_dtensor")
    out.add(a.place("use_megatron_fsdp"), fmt::format("checkpoints as {}", format), "--ckpt-format fsdp_dtensor",
            "Megatron-FSDP saves in this format only");
  if (!a.on("use_megatron_fsdp") && format == "fsdp_dtensor")
    out.add(a.place("ckpt_format"), "'fsdp_dtensor'", "torch_dist, or --use-megatron-fsdp beside it", "");
  if (a.has("lr") && a.number("min_lr") > a.number("lr"))
    out.add(a.place("min_lr"), fmt::format("{}", a.number("min_lr")), fmt::format("at most --lr {}", a.number("lr")), "");
  if (a.on("save") && !a.has("save_interval"))
    out.add(a.place("save"), "the flag", "--save-interval beside it", "Megatron asks when to save");
}

}  // namespace oomplan::megatron
