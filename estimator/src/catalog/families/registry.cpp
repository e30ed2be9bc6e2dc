// Finds the family of a model_type.
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "catalog/families/towers.hpp"
#include "catalog/families/traits.hpp"

namespace oomplan {
namespace {

std::array<std::span<const Family>, 9> groups() {
  return {llama_like_families(), dense_recent_families(), gpt_like_families(), moe_families(),        moe_recent_families(),
          mla_families(),        gemma_families(),        hybrid_families(),   state_space_families()};
}

/// Classes whose configs have been seen without a model_type.
constexpr std::pair<std::string_view, std::string_view> kClasses[] = {
    {"LlamaForCausalLM", "llama"},
    {"MistralForCausalLM", "mistral"},
    {"Qwen2ForCausalLM", "qwen2"},
    {"Qwen3ForCausalLM", "qwen3"},
    {"Gemma3ForCausalLM", "gemma3_text"},
    {"QWenLMHeadModel", "qwen"},
    {"GPT2LMHeadModel", "gpt2"},
    {"GPTNeoXForCausalLM", "gpt_neox"},
    {"FalconForCausalLM", "falcon"},
    {"RWForCausalLM", "falcon"},
    {"BaichuanForCausalLM", "baichuan"},
    {"BaiChuanForCausalLM", "baichuan"},
    {"Qwen3OmniMoeForConditionalGeneration", "qwen3_omni_moe"},
};

}  // namespace

const Family* find_family(std::string_view model_type, std::string_view class_name) {
  const Family* general = nullptr;
  for (const auto& group : groups()) {
    for (const Family& family : group) {
      if (family.model_type != model_type) continue;
      if (!family.only_class.empty() && family.only_class == class_name) return &family;
      if (family.only_class.empty()) general = &family;
    }
  }
  return general;
}

const Wrapper* find_wrapper(std::string_view model_type) {
  for (const Wrapper& wrapper : wrappers())
    if (wrapper.model_type == model_type) return &wrapper;
  return nullptr;
}

std::string_view model_type_of_class(std::string_view class_name) {
  for (const auto& [name, model_type] : kClasses)
    if (name == class_name) return model_type;
  return "";
}

std::vector<std::string> known_model_types() {
  std::vector<std::string> out;
  for (const auto& group : groups())
    for (const Family& family : group) out.emplace_back(family.model_type);
  for (const Wrapper& wrapper : wrappers()) out.emplace_back(wrapper.model_type);
  return out;
}

}  // namespace oomplan
