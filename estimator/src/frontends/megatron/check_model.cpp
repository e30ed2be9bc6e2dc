// Models and experts that Megatron refuses: megatron/training/arguments.py (validate_args, core_transformer_config_from_args),
// megatron/core/transformer/transformer_config.py (__post_init__) and megatron/core/transformer/moe/, 0.16.1.
#include <algorithm>

#include <fmt/format.h>

#include "frontends/megatron/run.hpp"

#include <nlohmann/json.hpp>

namespace oomplan::megatron {
namespace {

void check_required(const Arguments& a, Complaints& out) {
  const auto need = [&](std::string_view name, const char* what) {
    if (!a.has(name) && !a.given(name)) out.add(a.place(name), "nothing", what, "Megatron has no default for it");
  };
  if (!a.has("encoder_num_layers")) need("num_layers", "the number of layers");
  need("hidden_size", "the hidden size");
  need("num_attention_heads", "the number of attention heads");
  need("max_position_embeddings", "the longest sequence that positions allow");
  need("micro_batch_size", "sequences of a micro-batch");
  if (!a.has("encoder_seq_length")) need("seq_length", "tokens of a sequence");
  if (a.given("num_layers") && a.given("encoder_num_layers"))
    out.add(a.place("encoder_num_layers"), "beside --num-layers", "one of them", "both name the same layers");
}

void check_positions(const Arguments& a, const Run& r, Complaints& out) {
  const auto most = a.whole("max_position_embeddings");
  if (most && *most < r.sequence)
    out.add(a.place("max_position_embeddings"), fmt::format("{}", *most), fmt::format("at least {}, the sequence", r.sequence),
            "positions must reach to the end of the sequence");
  const bool rope = a.on("use_rotary_position_embeddings") || a.text("position_embedding_type") == "rope";
  if (!a.on("add_position_embedding") && !rope)
    out.add(a.place("add_position_embedding"), "the flag", "--position-embedding-type none in its place",
            "the flag is deprecated but for rotary positions");
  if (a.text("position_embedding_type") == "mrope" && !a.has("mrope_section") && !rope)
    out.add(a.place("position_embedding_type"), "'mrope'", "--mrope-section beside it", "");
  if (a.on("mtp_num_layers") && !rope && a.text("position_embedding_type") != "none")
    out.add(a.place("mtp_num_layers"), fmt::format("positions {}", a.text("position_embedding_type")), "rope or none",
            "multi-token prediction runs with these positions only");
}

void check_attention(const Arguments& a, const Run&, Complaints& out) {
  const auto hidden = a.whole("hidden_size"), heads = a.whole("num_attention_heads");
  if (!a.has("kv_channels") && hidden && heads && *heads > 0 && *hidden % *heads != 0)
    out.add(a.place("hidden_size"), fmt::format("{}", *hidden), fmt::format("a multiple of {} heads", *heads),
            "without --kv-channels the heads share out the hidden size");
  const bool latent = a.on("multi_latent_attention");
  if (latent && a.on("group_query_attention"))
    out.add(a.place("group_query_attention"), "the flag", "nothing beside --multi-latent-attention",
            "grouped queries and latent attention exclude each other");
  const std::string rope = a.text("rope_type");
  if (!latent && a.has("rope_type") && rope != "rope")
    out.add(a.place("rope_type"), fmt::format("'{}'", rope), "rope", "only latent attention has other rotary positions");
  const bool rotary = a.on("use_rotary_position_embeddings") || a.text("position_embedding_type") == "rope";
  if (latent && rotary && a.on("apply_rope_fusion") && rope == "rope")
    out.add(a.place("rope_type"), "'rope'", "yarn, or --no-rope-fusion", "latent attention's fused rotary kernel is YaRN's");
  if (latent && a.on("rotary_interleaved"))
    out.add(a.place("rotary_interleaved"), "the flag", "nothing beside --multi-latent-attention", "");
}

void check_activation(const Arguments& a, Complaints& out) {
  for (const char* const other : {"squared_relu", "quick_geglu"})
    if (a.on("swiglu") && a.on(other))
      out.add(a.place(other), "beside --swiglu", "one of them", "a feed-forward block has one activation");
  if (a.on("squared_relu") && !a.on("swiglu") && a.on("bias_gelu_fusion") && a.on("add_bias_linear"))
    out.add(a.place("squared_relu"), "the flag", "--disable-bias-linear or --no-bias-gelu-fusion beside it",
            "the fused bias and activation are GELU's and SwiGLU's");
  // MLP.forward: of gated functions only SwiGLU is fused with a bias; dense layers are all, or those between the experts
  const bool dense = !a.on("num_experts") || a.value("moe_layer_freq") != 1;
  if (a.on("quick_geglu") && !a.on("swiglu") && dense && a.on("bias_gelu_fusion") && a.on("add_bias_linear"))
    out.add(a.place("quick_geglu"), "the flag", "--disable-bias-linear or --no-bias-gelu-fusion beside it",
            "the fused bias and activation of dense layers are GELU's and SwiGLU's");
}

/// Biases of experts: TEGroupedMLP.__init__, MLP.forward with the probabilities, weighted_bias_swiglu_impl, SharedExpertMLP.
void check_expert_biases(const Arguments& a, Complaints& out) {
  if (!a.on("num_experts") || !a.on("add_bias_linear")) return;
  if (a.has("moe_shared_expert_intermediate_size"))
    out.add(a.place("moe_shared_expert_intermediate_size"), "biases", "--disable-bias-linear beside it",
            "shared experts have no biases");
  const bool grouped = a.on("moe_grouped_gemm") && a.text("transformer_impl") != "local";
  if (grouped && a.on("bias_dropout_fusion"))
    out.add(a.place("bias_dropout_fusion"), "nothing", "--no-bias-dropout-fusion, or --disable-bias-linear",
            "grouped experts with biases do not run with bias and dropout fused");
  if (a.on("swiglu")) {
    if (!grouped && a.on("bias_swiglu_fusion"))
      out.add(a.place("bias_swiglu_fusion"), "nothing", "--no-bias-swiglu-fusion, or --moe-grouped-gemm",
              "the kernel of SwiGLU and probabilities takes no bias");
  } else if (!a.on("quick_geglu") && !a.on("squared_relu") && a.on("bias_gelu_fusion")) {
    out.add(a.place("bias_gelu_fusion"), "nothing", "--no-bias-gelu-fusion, or --disable-bias-linear",
            "experts fuse SwiGLU and quick GEGLU with the probabilities, GELU not");
  }
}

/// What Megatron-core's own modules do not do: its attention, PyTorch's norm (megatron/core/transformer/dot_product_attention.py,
/// torch_norm.py) and products in 8 bits.
void check_local(const Arguments& a, const Run& r, Complaints& out) {
  if (a.text("transformer_impl") != "local") return;
  if (r.context > 1)
    out.add(a.place("context_parallel_size"), fmt::format("{}", r.context), "1, or --transformer-impl transformer_engine",
            "context parallelism is supported by Transformer Engine's attention only");
  if (a.text("normalization") == "RMSNorm") {
    if (!a.on("no_persist_layer_norm"))
      out.add(a.place("normalization"), "'RMSNorm'", "--no-persist-layer-norm beside it", "PyTorch's norm has no such kernel");
    if (r.sequence_parallel)
      out.add(a.place("normalization"), "'RMSNorm'", "LayerNorm, or --transformer-impl transformer_engine",
              "PyTorch's norm knows no sequence parallelism");
  }
}

void check_router(const Arguments& a, Complaints& out) {
  const bool sigmoid = a.text("moe_router_score_function") == "sigmoid";
  const auto kinds = a.items("moe_router_load_balancing_type");
  const bool sinkhorn = std::find(kinds.begin(), kinds.end(), "sinkhorn") != kinds.end();
  if (a.whole_or("moe_router_topk", 2) == 1 && !sigmoid && !a.on("moe_router_pre_softmax") && !sinkhorn)
    out.add(a.place("moe_router_topk"), "1", "--moe-router-pre-softmax beside it",
            "the softmax over one expert has no gradient: it must come before the choice");
  if (a.on("moe_router_enable_expert_bias") && !sigmoid)
    out.add(a.place("moe_router_enable_expert_bias"), "the flag", "--moe-router-score-function sigmoid beside it",
            "balancing by a bias of the experts goes with the sigmoid's scores");
  const auto groups = a.whole("moe_router_num_groups"), top = a.whole("moe_router_group_topk"), n = a.whole("num_experts");
  if (top && *top > 0) {
    if (!groups || *groups < 1)
      out.add(a.place("moe_router_group_topk"), fmt::format("{}", *top), "--moe-router-num-groups beside it",
              "routing limited to groups needs their number");
    else if (n && *n % *groups != 0)
      out.add(a.place("moe_router_num_groups"), fmt::format("{}", *groups), fmt::format("a divisor of the {} experts", *n),
              "groups hold equally many experts");
    else if (*top > *groups)
      out.add(a.place("moe_router_group_topk"), fmt::format("{}", *top), fmt::format("at most the {} groups", *groups), "");
  }
  if (sinkhorn && a.number("moe_expert_capacity_factor") > 0)
    out.add(a.place("moe_expert_capacity_factor"), "beside sinkhorn", "aux_loss, seq_aux_loss, global_aux_loss or none",
            "a capacity goes with these ways of balancing");
  if (kinds.size() > 1 && a.items("moe_aux_loss_coeff").size() != kinds.size())
    out.add(a.place("moe_aux_loss_coeff"), fmt::format("{} values", a.items("moe_aux_loss_coeff").size()),
            fmt::format("{}, one for each way of balancing", kinds.size()), "");
}

void check_dispatch(const Arguments& a, const Run& r, Complaints& out) {
  const std::string dispatcher = a.text("moe_token_dispatcher_type");
  const auto shared = a.whole("moe_shared_expert_intermediate_size");
  if (shared && *shared <= 0)
    out.add(a.place("moe_shared_expert_intermediate_size"), fmt::format("{}", *shared), "a positive width",
            "it is the number of shared experts times the width of one");
  if (shared && a.on("moe_shared_expert_overlap") && dispatcher != "alltoall")
    out.add(a.place("moe_shared_expert_overlap"), fmt::format("dispatcher {}", dispatcher), "alltoall",
            "the shared experts overlap with this dispatcher only");
  if (a.on("moe_pad_expert_input_to_capacity") && !a.has("moe_expert_capacity_factor"))
    out.add(a.place("moe_pad_expert_input_to_capacity"), "the flag", "--moe-expert-capacity-factor beside it",
            "there is no capacity to pad to");
  if (a.on("moe_enable_deepep") && dispatcher != "flex")
    out.add(a.place("moe_enable_deepep"), fmt::format("dispatcher {}", dispatcher), "flex",
            "DeepEP is a back end of this dispatcher only");
  if (a.on("moe_enable_deepep") && a.text("moe_flex_dispatcher_backend") == "hybridep")
    out.add(a.place("moe_flex_dispatcher_backend"), "hybridep beside --moe-enable-deepep", "deepep",
            "the dispatcher has one back end");
  if (a.on("num_experts") && a.on("add_bias_linear") && r.expert_tensor > 1)
    out.add(a.place("num_experts"), fmt::format("biases, expert tensor size {}", r.expert_tensor),
            "--disable-bias-linear, or --expert-tensor-parallel-size 1", "experts that are split have no biases");
  if (a.on("num_experts") && r.tensor > 1 && !r.sequence_parallel)
    out.add(a.place("sequence_parallel"), "nothing", "--sequence-parallel",
            "experts train with tensor parallelism only where sequence parallelism is on");
}

}  // namespace

void check_model(const Arguments& a, const Run& r, Complaints& out) {
  check_required(a, out);
  check_positions(a, r, out);
  check_attention(a, r, out);
  check_activation(a, out);
  check_local(a, r, out);
  const std::int64_t sources = (a.on("mock_data") ? 1 : 0) + (a.on("data_path") ? 1 : 0) +
                               (a.on("train_data_path") || a.on("valid_data_path") || a.on("test_data_path") ? 1 : 0);
  if (sources > 1) out.add(a.place("data_path"), "several sources of data", "one of them", "training has a single source");
  const std::pair<const char*, const char*> gone[] = {{"batch_size", "--micro-batch-size"},
                                                      {"model_parallel_size", "--tensor-model-parallel-size"},
                                                      {"checkpoint_activations", "--recompute-activations"},
                                                      {"warmup", "--lr-warmup-fraction"}};
  for (const auto& [name, instead] : gone)
    if (a.given(name)) out.add(a.place(name), "the flag", fmt::format("{} in its place", instead), "Megatron has dropped it");
}

void check_experts(const Arguments& a, const Run& r, Complaints& out) {
  const auto n = a.whole("num_experts");
  if (!n || *n == 0) {
    if (r.expert > 1)
      out.add(a.place("expert_model_parallel_size"), fmt::format("{}", r.expert), "--num-experts beside it",
              "expert parallelism needs experts");
    if (a.has("moe_ffn_hidden_size"))
      out.add(a.place("moe_ffn_hidden_size"), "the flag", "--num-experts beside it",
              "there are no experts that it could be the width of");
    return;
  }
  if (*n < 0) return out.add(a.place("num_experts"), fmt::format("{}", *n), "a positive whole number", "");
  if (*n % r.expert != 0)
    out.add(a.place("expert_model_parallel_size"), fmt::format("{}", r.expert), fmt::format("a divisor of the {} experts", *n),
            "the number of experts must be a multiple of the expert-parallel size");
  if (const auto& pattern = a.value("moe_layer_freq");
      pattern.is_array() && static_cast<std::int64_t>(pattern.size()) != r.layers)
    out.add(a.place("moe_layer_freq"), fmt::format("{} items", pattern.size()), fmt::format("{}, one for each layer", r.layers),
            "the list says of every layer whether it has experts");
  check_router(a, out);
  check_expert_biases(a, out);
  check_dispatch(a, r, out);
}

}  // namespace oomplan::megatron
