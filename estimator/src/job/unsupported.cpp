#include "job/unsupported.hpp"

#include <array>

namespace oomplan {
namespace {

struct KeyRow {
  std::string_view key, what;
};
constexpr std::array<KeyRow, 8> kKeys{{{"quantize", "quantised training weights"},
                                       {"quantization", "quantised training weights"},
                                       {"speculative", "speculative decoding"},
                                       {"draft", "speculative decoding"},
                                       {"virtual_pipeline", "virtual pipeline stages"},
                                       {"teacher", "distillation with a teacher"},
                                       {"tree_training", "tree training"},
                                       {"keep_low_precision_grads", "FSDP1's keep_low_precision_grads"}}};

constexpr std::string_view kGalore = "GaLore, whose singular value decompositions take a workspace that cuSOLVER alone knows";

constexpr std::string_view kPeft = "this kind of peft's adapters";

struct ValueRow {
  std::string_view key, value, what;
};
constexpr std::array<ValueRow, 41> kValues{{{"engine", "megatron", "Megatron"},
                                            {"engine", "veomni", "VeOmni"},
                                            {"engine", "torchtitan", "torchtitan"},
                                            {"engine", "trtllm", "TensorRT-LLM"},
                                            {"engine", "hf", "generation with transformers"},
                                            {"framework", "oumi", "Oumi"},
                                            {"framework", "trl", "TRL"},
                                            {"framework", "megatron", "Megatron"},
                                            {"kernels", "transformer_engine", "Transformer Engine"},
                                            {"head", "trl_fused", "TRL's fused output layer (1.16)"},
                                            {"head", "liger_fused_dpo", "Liger's preference losses in a job (torch.compile)"},
                                            {"head", "liger_fused_grpo", "Liger's GRPO loss in a job (torch.compile)"},
                                            {"optimizer", "adam_bf16", "AnyPrecisionAdamW"},
                                            {"optimizer", "lion", "Lion outside of bitsandbytes"},
                                            {"optimizer", "galore", kGalore},
                                            {"optimizer", "galore_adamw", kGalore},
                                            {"optimizer", "galore_adamw_8bit", kGalore},
                                            {"optimizer", "galore_adafactor", kGalore},
                                            {"offload", "gradients", "offload of gradients alone"},
                                            {"offload", "activations", "activations between phases"},
                                            {"sync.by", "awex", "the weight update by awex"},
                                            {"sync.by", "lora", "the weight update of LoRA adapters"},
                                            {"weights", "int4", "int4 weights of a server"},
                                            {"lora.kind", "adalora", kPeft},
                                            {"lora.kind", "oft", kPeft},
                                            {"lora.kind", "boft", kPeft},
                                            {"lora.kind", "loha", kPeft},
                                            {"lora.kind", "lokr", kPeft},
                                            {"lora.kind", "prompt_tuning", kPeft},
                                            {"lora.kind", "prefix_tuning", kPeft},
                                            {"lora.kind", "p_tuning", kPeft},
                                            {"lora.kind", "adaption_prompt", kPeft},
                                            {"lora.kind", "fourierft", kPeft},
                                            {"lora.kind", "ln_tuning", kPeft},
                                            {"lora.kind", "poly", kPeft},
                                            {"lora.kind", "hra", kPeft},
                                            {"lora.kind", "bone", kPeft},
                                            {"lora.kind", "randlora", kPeft},
                                            {"lora.kind", "c3a", kPeft},
                                            {"lora.kind", "shira", kPeft}}};

std::string sentence(std::string_view what) { return "not supported yet: " + std::string(what); }

}  // namespace

std::string unsupported_key(std::string_view key) {
  for (const auto& row : kKeys)
    if (row.key == key) return sentence(row.what);
  return {};
}

std::string unsupported_value(std::string_view key, std::string_view value) {
  for (const auto& row : kValues)
    if (row.key == key && row.value == value) return sentence(row.what);
  return {};
}

}  // namespace oomplan
