// The checkpoint's names of parameter tensors, a row per model_type. What a row does not set is Llama's.
#pragma once
#include <string_view>

namespace oomplan {

struct Names {
  std::string_view model_type = {};
  std::string_view family = {};      ///< where two families share a model_type
  std::string_view stem = "model.";  ///< before "layers", the embedding and the final norm
  std::string_view layers = "layers.{l}.";
  std::string_view embedding = "embed_tokens", positions = "embed_positions", embedding_norm = "embedding_norm";
  std::string_view final_norm = "norm", head = "lm_head";
  std::string_view attention = "self_attn.", q = "q_proj", k = "k_proj", v = "v_proj", out = "o_proj", qkv = "qkv_proj";
  std::string_view q_norm = "q_norm", k_norm = "k_norm", sinks = "sinks";
  std::string_view feed_forward = "mlp.", gate = "gate_proj", up = "up_proj", down = "down_proj", gate_up = "gate_up_proj";
  // Norms: the one before the mixer, behind it, before the feed-forward, behind it.
  std::string_view pre_mixer = "input_layernorm", post_mixer = "post_attention_layernorm", pre_ff = "post_attention_layernorm",
                   post_ff = "post_feedforward_layernorm";
  std::string_view moe = "mlp.", router = "gate", experts = "experts.{e}.", shared = "mlp.shared_experts.",
                   shared_gate = "mlp.shared_expert_gate", correction = "mlp.gate.e_score_correction_bias";
  bool correction_is_parameter = false;  ///< ... that wants no gradient; otherwise a buffer
  std::string_view fused_up = "experts.gate_up_proj", fused_down = "experts.down_proj";  ///< all experts in one tensor
  std::string_view expert_gate = "gate_proj", expert_up = "up_proj", expert_down = "down_proj";
  std::string_view state = "mixer.";  ///< Mamba and linear-attention blocks
};

/// The row of a model_type, otherwise of its family, otherwise Llama's.
const Names& names_of(std::string_view model_type, std::string_view family);

}  // namespace oomplan
