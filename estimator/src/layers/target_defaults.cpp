// huggingface/peft src/peft/utils/constants.py: 0.6.2, 0.8.2, 0.10.0, 0.11.1, 0.13.2, 0.15.2, 0.17.1, 0.18.1, 0.19.1, 0.20.0,
// 0.21.2. No release changed a row, they added some.
#include "layers/target_defaults.hpp"

#include <algorithm>

namespace oomplan {
namespace {

constexpr TargetDefault kLora[] = {
    {"gpt2", "c_attn", "0.6.2"},
    {"bloom", "query_key_value", "0.6.2"},
    {"opt", "q_proj v_proj", "0.6.2"},
    {"gptj", "q_proj v_proj", "0.6.2"},
    {"gpt_neox", "query_key_value", "0.6.2"},
    {"llama", "q_proj v_proj", "0.6.2"},
    {"mpt", "Wqkv", "0.6.2"},
    {"falcon", "query_key_value", "0.6.2"},
    {"mistral", "q_proj v_proj", "0.6.2"},
    {"stablelm", "q_proj v_proj", "0.6.2"},
    {"mixtral", "q_proj v_proj", "0.8.2"},
    {"phi", "q_proj v_proj fc1 fc2", "0.8.2"},
    {"gemma", "q_proj v_proj", "0.10.0"},
    {"gemma2", "q_proj v_proj", "0.13.2"},
    {"qwen2", "q_proj v_proj", "0.13.2"},
    {"gemma3_text", "q_proj v_proj", "0.17.1"},
    {"llama4", "q_proj v_proj", "0.17.1"},
    {"qwen3", "q_proj v_proj", "0.17.1"},
    {"gemma4", R"(.*language_model\..*\.(q_proj|v_proj))", "0.19.1", true},
    {"nemotron_h", "q_proj k_proj v_proj o_proj", "0.20.0"},
};
constexpr TargetDefault kVera[] = {{"phi", "q_proj v_proj", "0.11.1"}};  // otherwise LoRA's
constexpr TargetDefault kIa3[] = {
    {"gpt2", "c_attn mlp.c_proj", "0.6.2"},
    {"bloom", "query_key_value mlp.dense_4h_to_h", "0.6.2"},
    {"opt", "q_proj k_proj fc2", "0.6.2"},
    {"gptj", "q_proj v_proj fc_out", "0.6.2"},
    {"gpt_neox", "query_key_value dense_4h_to_h", "0.6.2"},
    {"llama", "k_proj v_proj down_proj", "0.6.2"},
    {"falcon", "query_key_value dense_4h_to_h", "0.6.2"},
    {"mistral", "k_proj v_proj down_proj", "0.8.2"},
    {"phi", "q_proj v_proj fc2", "0.8.2"},
    {"mixtral", "k_proj v_proj w2", "0.10.0"},
    {"gemma", "q_proj v_proj down_proj", "0.10.0"},
    {"gemma2", "q_proj v_proj down_proj", "0.13.2"},
    {"qwen2", "q_proj v_proj down_proj", "0.13.2"},
    {"gemma3_text", "q_proj v_proj down_proj", "0.17.1"},
    {"llama4", "q_proj v_proj down_proj", "0.17.1"},
    {"qwen3", "q_proj v_proj down_proj", "0.17.1"},
};

template <std::size_t N>
const TargetDefault* row_of(const TargetDefault (&rows)[N], std::string_view type) {
  const auto* found =
      std::find_if(std::begin(rows), std::end(rows), [&](const TargetDefault& r) { return r.model_type == type; });
  return found == std::end(rows) ? nullptr : found;
}

// huggingface/peft src/peft/utils/transformers_weight_conversion.py _MOE_TARGET_MODULE_MAPPING, with transformers 5.23's
// _MODEL_TO_CONVERSION_PATTERN (conversion_mapping.py).
constexpr ExpertWords kOfMixtral{
    {{{"gate", "gate.weight"}, {"w1", "gate_up_proj"}, {"w3", "gate_up_proj"}, {"w2", "down_proj"}}}};
constexpr ExpertWords kOfQwen{
    {{{"gate", "gate.weight"}, {"gate_proj", "gate_up_proj"}, {"up_proj", "gate_up_proj"}, {"down_proj", "down_proj"}}}};
constexpr std::string_view kLikeMixtral[] = {"mixtral", "minimax", "minimax_m2"};
constexpr std::string_view kLikeQwen[] = {"afmoe",        "deepseek_v2", "deepseek_v3",   "deepseek_v32",   "dots1",
                                          "ernie4_5_moe", "glm4_moe",    "glm4_moe_lite", "glm_moe_dsa",    "solar_open",
                                          "mellum",       "qwen3_moe",   "qwen3_next",    "hunyuan_v1_moe", "flex_olmo",
                                          "olmoe",        "exaone_moe"};

}  // namespace

std::vector<std::string> TargetDefault::entries() const {
  std::vector<std::string> out;
  for (std::string_view rest = targets; !rest.empty();) {
    const std::size_t blank = rest.find(' ');
    out.emplace_back(rest.substr(0, blank));
    rest = blank == std::string_view::npos ? std::string_view{} : rest.substr(blank + 1);
  }
  return out;
}

const TargetDefault* default_targets(const Architecture& a, AdapterKind kind) {
  // what was read of a multimodal file for its language model alone is a model of the text's own type
  std::string_view type = a.model_type;
  if (type == "gemma3") type = "gemma3_text";
  if (type == "gemma4") type = "gemma4_text";
  if (type == "llama4") type = "llama4_text";
  if (kind == AdapterKind::ia3) return row_of(kIa3, type);
  if (kind == AdapterKind::vera)
    if (const TargetDefault* own = row_of(kVera, type)) return own;
  return row_of(kLora, type);
}

const ExpertWords* expert_words(std::string_view family) {
  if (std::find(std::begin(kLikeMixtral), std::end(kLikeMixtral), family) != std::end(kLikeMixtral)) return &kOfMixtral;
  if (std::find(std::begin(kLikeQwen), std::end(kLikeQwen), family) != std::end(kLikeQwen)) return &kOfQwen;
  return nullptr;
}

}  // namespace oomplan
