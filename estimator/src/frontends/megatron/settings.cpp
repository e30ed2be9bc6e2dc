#include "frontends/megatron/settings.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include <fmt/format.h>

#include "frontends/megatron/flag_table.hpp"
#include "job/knobs.hpp"

namespace oomplan::megatron {
namespace {

class Writer {
 public:
  Writer(const Arguments& a, const Run& r, std::string_view role, const Complaints& told)
      : a_(a), r_(r), role_(role), file_(told.file) {}

  RoleSettings run() {
    put("engine", "megatron", "");
    put("layout", layout(), "tensor_model_parallel_size");
    put("sequence_parallel", word(r_.sequence_parallel), "sequence_parallel");
    put_stages();
    put_batch();
    put_recompute();
    put_kernels();
    put_optimizer();
    return std::move(out_);
  }

 private:
  static std::string word(bool on) { return on ? "true" : "false"; }
  void put(std::string_view knob, std::string value, std::string_view argument) {
    const std::string key = fmt::format("{}.{}", role_, knob);
    const std::string place = argument.empty() ? "" : a_.place(argument);
    const bool said = argument.empty() || a_.given(argument);
    Origin origin{said ? Origin::Kind::override_ : Origin::Kind::default_, {file_, 0, 0, place}, {}, {}};
    if (!said) {
      origin.because = fmt::format("Megatron {} default", kVersion);
      origin.source = fmt::format("NVIDIA/Megatron-LM megatron/training/arguments.py, {}", kVersion);
    }
    out_.settings.push_back({key, std::move(value), std::move(origin)});
    out_.flags[key] = place;
  }

  void put_if(std::string_view knob, std::string value, std::string_view argument) {
    if (engine_has(knob)) put(knob, std::move(value), argument);
  }

  /// "d4t2p2c1", with the experts' own list where their tensor degree is not 1.
  std::string layout() const {
    std::string letters = fmt::format("d{}", r_.data);
    const auto add = [](std::string& to, char letter, std::int64_t n) {
      if (n > 1) to += fmt::format("{}{}", letter, n);
    };
    add(letters, 't', r_.tensor);
    add(letters, 'p', r_.pipeline);
    add(letters, 'c', r_.context);
    if (!a_.on("num_experts")) return letters;
    if (r_.expert_tensor == 1) {
      add(letters, 'e', r_.expert);
      return letters;
    }
    std::string experts = fmt::format("t{}e{}", r_.expert_tensor, r_.expert);
    add(experts, 'p', r_.pipeline);
    return fmt::format("attn:{}|ffn:{}", letters, experts);
  }
  void put_stages() {
    put("virtual_stages", fmt::format("{}", r_.chunks),
        a_.has("num_virtual_stages_per_pipeline_rank") ? "num_virtual_stages_per_pipeline_rank"
                                                       : "num_layers_per_virtual_pipeline_stage");
    if (r_.chunks > 1 && a_.has("microbatch_group_size_per_vp_stage"))
      put("virtual_group", a_.value("microbatch_group_size_per_vp_stage").dump(), "microbatch_group_size_per_vp_stage");
    if (a_.has("decoder_first_pipeline_num_layers"))
      put("first_stage_layers", a_.value("decoder_first_pipeline_num_layers").dump(), "decoder_first_pipeline_num_layers");
    if (a_.has("decoder_last_pipeline_num_layers"))
      put("last_stage_layers", a_.value("decoder_last_pipeline_num_layers").dump(), "decoder_last_pipeline_num_layers");
    put("embedding_in_split", word(a_.on("account_for_embedding_in_pipeline_split")), "account_for_embedding_in_pipeline_split");
    put("loss_in_split", word(a_.on("account_for_loss_in_pipeline_split")), "account_for_loss_in_pipeline_split");
  }
  void put_batch() {
    put("sequences_per_micro_batch", fmt::format("{}", r_.micro_batch), "micro_batch_size");
    put("sequence_tokens", fmt::format("{}", r_.sequence), a_.has("seq_length") ? "seq_length" : "encoder_seq_length");
    put("micro_batches", fmt::format("{}", r_.micro_batches), "global_batch_size");
  }
  void put_recompute() {
    // validate_args and TransformerConfig: two older switches are selective recomputation
    const bool selective =
        a_.on("recompute_activations") || a_.on("moe_layer_recompute") || a_.text("recompute_granularity") == "selective";
    const bool full = !selective && a_.text("recompute_granularity") == "full";
    put("recompute", full ? "full" : selective ? "selective" : "none", "recompute_granularity");
    if (full) {
      put("recompute_method", a_.text("recompute_method"), "recompute_method");
      put("recompute_layers", a_.value("recompute_num_layers").dump(), "recompute_num_layers");
    }
    if (!selective) return;
    std::vector<std::string> modules = a_.items("recompute_modules");
    if (modules.empty()) modules = {"core_attn"};
    if (a_.on("moe_layer_recompute")) modules.emplace_back("moe");
    put("recompute_modules", fmt::format("[{}]", fmt::join(modules, ", ")), "recompute_modules");
  }
  /// core_transformer_config_from_args and TransformerConfig: dividing scores by the layer's number has the softmax in fp32.
  void put_local_modules() {
    put("transformer_impl", "local", "transformer_impl");
    put_local_softmax();
    put("query_key_layer_scaling", word(a_.on("apply_query_key_layer_scaling")), "apply_query_key_layer_scaling");
  }
  void put_local_softmax() {
    put("masked_softmax_fusion", word(a_.on("masked_softmax_fusion")), "masked_softmax_fusion");
    put("attention_softmax_in_fp32", word(a_.on("attention_softmax_in_fp32")), "attention_softmax_in_fp32");
  }
  void put_kernels() {
    // auto: Transformer Engine prefers cuDNN's attention on Hopper and later, which is what the engine's default is
    const std::string attention = a_.text("attention_backend");
    const bool local = a_.text("transformer_impl") == "local";
    if (local) put_local_modules();
    if (attention != "auto" && !local) put("attention", attention, "attention_backend");
    if (attention == "local" && !local) put_local_softmax();
    put("cross_entropy", a_.on("cross_entropy_loss_fusion") ? a_.text("cross_entropy_fusion_impl") : "unfused",
        a_.on("cross_entropy_loss_fusion") ? "cross_entropy_fusion_impl" : "cross_entropy_loss_fusion");
    if (r_.context > 1) put("context_exchange", a_.items("cp_comm_type").front(), "cp_comm_type");
    // core_transformer_config_from_args; validate_args: without biases GELU's is off, and quick GEGLU's with it
    const bool gated = a_.on("swiglu"), biases = a_.on("add_bias_linear"), gelu = a_.on("bias_gelu_fusion");
    put_if("activation_fusion",
           word(gated                  ? a_.on("bias_swiglu_fusion")
                : a_.on("quick_geglu") ? biases && gelu
                                       : !biases || gelu),
           gated ? "bias_swiglu_fusion" : "bias_gelu_fusion");
    put_if("bias_dropout_fusion", word(a_.on("bias_dropout_fusion")), "bias_dropout_fusion");
    put("jit_fuser", word(!a_.on("disable_jit_fuser")), "disable_jit_fuser");
    put_if("rotary_fusion", word(a_.on("apply_rope_fusion")), "apply_rope_fusion");
    put_if("attention_mask", word(a_.on("create_attention_mask_in_dataloader")), "create_attention_mask_in_dataloader");
    put_if("mtp_layers", fmt::format("{}", a_.whole_or("mtp_num_layers", 0)), "mtp_num_layers");
    if (!a_.on("num_experts")) return;
    put("dispatcher", a_.text("moe_token_dispatcher_type"), "moe_token_dispatcher_type");
    if (a_.text("moe_token_dispatcher_type") == "flex")
      put("deepep_num_sms", fmt::format("{}", a_.whole_or("moe_deepep_num_sms", 20)), "moe_deepep_num_sms");
    put_if("shared_expert_overlap",
           word(a_.on("moe_shared_expert_overlap") && a_.whole_or("moe_shared_expert_intermediate_size", 0) > 0),
           "moe_shared_expert_overlap");
    put("grouped_experts", word(a_.on("moe_grouped_gemm")), "moe_grouped_gemm");
    put("sinkhorn", word(a_.items("moe_router_load_balancing_type").front() == "sinkhorn"), "moe_router_load_balancing_type");
    put_if("router_aux_loss", word(balances(a_)), "moe_aux_loss_coeff");
    put("permute_fusion", word(a_.on("moe_permute_fusion")), "moe_permute_fusion");
    put("router_dtype", a_.has("moe_router_dtype") ? a_.text("moe_router_dtype") : "bf16", "moe_router_dtype");
    if (a_.number("moe_expert_capacity_factor") > 0) {
      put("expert_capacity", fmt::format("{}", a_.number("moe_expert_capacity_factor")), "moe_expert_capacity_factor");
      put("pad_expert_input", word(a_.on("moe_pad_expert_input_to_capacity")), "moe_pad_expert_input_to_capacity");
    }
  }
  void put_optimizer() {
    put("optimizer", "adamw", "optimizer");  // Megatron's adam decouples its weight decay
    put("distributed_optimizer", word(a_.on("use_distributed_optimizer")), "use_distributed_optimizer");
    put("gradient_accumulation_fusion", word(a_.on("gradient_accumulation_fusion")), "gradient_accumulation_fusion");
    if (a_.on("defer_embedding_wgrad_compute")) {
      put("defer_embedding_wgrad_compute", "true", "defer_embedding_wgrad_compute");
      const std::int64_t limit = a_.whole_or("wgrad_deferral_limit", 0);
      put("wgrad_deferral_limit", limit > 0 ? fmt::format("{}", limit) : "auto", "wgrad_deferral_limit");
    }
    put_if("precision_aware_optimizer", word(a_.on("use_precision_aware_optimizer")), "use_precision_aware_optimizer");
    put_if("exp_avg_dtype", a_.text("exp_avg_dtype"), "exp_avg_dtype");
    put_if("exp_avg_sq_dtype", a_.text("exp_avg_sq_dtype"), "exp_avg_sq_dtype");
    // OptimizerConfig: use_precision_aware_optimizer_no_fp8_or_ds_fp8
    put_if("fp32_masters",
           word(a_.on("use_precision_aware_optimizer") && !a_.on("optimizer_cpu_offload") && a_.text("fp8_recipe") != "delayed"),
           "fp8_recipe");
    // store_param_remainders keeps what a parameter in bf16 lacks (OptimizerConfig)
    if (a_.on("fp16") && a_.on("use_precision_aware_optimizer")) put("fp32_masters", "true", "fp16");
    if (a_.has("fp8")) {
      put("fp8_recipe", a_.text("fp8_recipe"), "fp8_recipe");
      put("fp8_param_gather", word(a_.on("fp8_param_gather")), "fp8_param_gather");
      if (a_.on("first_last_layers_bf16")) {
        put("bf16_layers_at_start", a_.value("num_layers_at_start_in_bf16").dump(), "num_layers_at_start_in_bf16");
        put("bf16_layers_at_end", a_.value("num_layers_at_end_in_bf16").dump(), "num_layers_at_end_in_bf16");
      }
      if (a_.on("num_experts"))
        put("router_padding", word(a_.on("moe_router_padding_for_quantization") || a_.on("moe_router_padding_for_fp8")),
            "moe_router_padding_for_quantization");
    }
    if (a_.on("optimizer_cpu_offload")) {
      put("optimizer_cpu_offload", "true", "optimizer_cpu_offload");
      put("optimizer_offload_fraction", fmt::format("{}", a_.number("optimizer_offload_fraction")), "optimizer_offload_fraction");
      put("overlap_grad_reduce", word(a_.on("overlap_grad_reduce")), "overlap_grad_reduce");
    }
    if (a_.on("use_megatron_fsdp")) put_fsdp();
    // validate_args: with --bf16 gradients are fp32 unless --grad-reduce-in-bf16
    put("precision.reduce", a_.on("grad_reduce_in_bf16") ? "bf16" : "fp32", "grad_reduce_in_bf16");
  }
  void put_fsdp() {
    put("megatron_fsdp", a_.text("data_parallel_sharding_strategy"), "data_parallel_sharding_strategy");
    put("memory_efficient_load", word(a_.on("init_model_with_meta_device")), "init_model_with_meta_device");
    put("fsdp_double_buffer", word(a_.on("fsdp_double_buffer")), "fsdp_double_buffer");
    if (a_.has("suggested_communication_unit_size"))
      put("communication_unit_size", fmt::format("{}", a_.whole_or("suggested_communication_unit_size", 0)),
          "suggested_communication_unit_size");
    if (!a_.on("optimizer_cpu_offload")) put("overlap_grad_reduce", word(a_.on("overlap_grad_reduce")), "overlap_grad_reduce");
  }

  const Arguments& a_;
  const Run& r_;
  std::string_view role_;
  const std::string& file_;
  RoleSettings out_;
};

}  // namespace

bool engine_has(std::string_view knob) {
  return std::any_of(knobs().begin(), knobs().end(), [&](const Knob& k) { return k.key == knob; });
}

bool balances(const Arguments& a) {
  const auto kinds = a.items("moe_router_load_balancing_type"), coefficients = a.items("moe_aux_loss_coeff");
  return !kinds.empty() && kinds[0] != "none" && kinds[0] != "sinkhorn" && !coefficients.empty() &&
         std::stod(coefficients[0]) > 0;
}

RoleSettings settings_of(const Arguments& a, const Run& r, std::string_view role, const Complaints& told) {
  return Writer(a, r, role, told).run();
}

}  // namespace oomplan::megatron
