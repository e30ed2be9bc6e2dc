// How mbridge, Megatron-Bridge and verl itself make the models that an RL framework trains on Megatron: the settings of
// TransformerConfig that decide on memory, family by family.
//
// Sources: ISEEKYAN/mbridge mbridge/core/llm_bridge.py and mbridge/models, 0.15.1; verl/models/mcore/config_converter.py, 0.4.0
// to 0.7.0; NVIDIA-NeMo/Megatron-Bridge src/megatron/bridge/models/{gpt_provider,qwen/*_bridge,llama/llama_bridge,
// glm/glm45_bridge,deepseek/deepseek_v3_bridge}.py, 0.4.0. What none of them sets is TransformerConfig's own default, where
// Megatron-LM's arguments have others (megatron/core/model_parallel_config.py, transformer/transformer_config.py, 0.16.0,
// 0.17.0).
#pragma once
#include <optional>
#include <string_view>

#include <oomplan/job.hpp>

namespace oomplan {

struct MadeModel {
  bool fused_gradients = false;    ///< gradient_accumulation_fusion; with AReaL's adapters never
  bool deallocates = false;        ///< deallocate_pipeline_outputs
  bool rotary_fusion = false;      ///< apply_rope_fusion
  bool activation_fusion = false;  ///< bias_activation_fusion
  bool permute_fusion = false;     ///< moe_permute_fusion
  bool shared_overlap = false;     ///< moe_shared_expert_overlap
  bool balances = false;           ///< a loss that balances the experts has a coefficient
  DType router = DType::bf16;      ///< moe_router_dtype
};

struct Architecture;
struct Trainer;

/// Megatron-Bridge makes the model of a framework whose loss is the one that cross_entropy says: Relax's --megatron-to-hf-mode
/// bridge (relax/backends/megatron/model_provider.py).
bool made_by_bridge(const Trainer&);
/// Images may come under Megatron: with verl, and where Megatron-Bridge makes the model.
bool sees_images_under_megatron(const Trainer&);

/// A language model by its family, one beside a vision tower by its model_type.
std::string_view made_as(const Architecture&);

/// Qwen3VLMoEModelProvider: freeze_language_model and freeze_vision_model are true, freeze_vision_projection is not
/// (megatron/bridge/models/qwen_vl/qwen3_vl_provider.py, 0.2 to 0.5.2).
bool trains_mergers_alone(ModelMaker, const Architecture&);

/// Nothing for a family of which Megatron-Bridge's settings were not read. mbridge and verl have TransformerConfig's own for all
/// others.
std::optional<MadeModel> made_model(ModelMaker, std::string_view family);

}  // namespace oomplan
