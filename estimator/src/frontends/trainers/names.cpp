#include "frontends/trainers/names.hpp"

#include <algorithm>
#include <array>
#include <utility>

namespace oomplan::trainers {
namespace {

constexpr std::array<OptimizerName, 16> kOptimizers{{
    {"adamw_torch", "adamw", "foreach"},
    {"adamw_torch_fused", "adamw", "fused"},
    {"adamw_8bit", "adamw_8bit", ""},
    {"adamw_bnb_8bit", "adamw_8bit", ""},
    {"paged_adamw_8bit", "paged_adamw_8bit", ""},
    {"paged_adamw_32bit", "paged_adamw_32bit", ""},
    {"paged_adamw", "paged_adamw_32bit", ""},
    {"adafactor", "adafactor", ""},
    {"sgd", "sgd", "foreach"},
    {"lion_32bit", "lion_32bit", ""},
    {"lion", "lion_32bit", ""},
    {"lion_8bit", "lion_8bit", ""},
    {"paged_lion_32bit", "paged_lion_32bit", ""},
    {"paged_lion", "paged_lion_32bit", ""},
    {"paged_lion_8bit", "paged_lion_8bit", ""},
    {"apollo_adamw", "apollo_adamw", ""},
}};
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kAttention{
    {{"sdpa", "hf_sdpa"}, {"", "hf_sdpa"}, {"eager", "hf_eager"}, {"flash_attention_2", "hf_flash"}}};

}  // namespace

const OptimizerName* find_optimizer(std::string_view name) {
  const auto row = std::find_if(kOptimizers.begin(), kOptimizers.end(), [&](const OptimizerName& r) { return r.name == name; });
  return row == kOptimizers.end() ? nullptr : &*row;
}

std::string_view word_of_optimizer(std::string_view optimizer, std::string_view form) {
  const auto row = std::find_if(kOptimizers.begin(), kOptimizers.end(), [&](const OptimizerName& r) {
    return r.optimizer == optimizer && (form.empty() || r.form == form);
  });
  return row == kOptimizers.end() ? std::string_view() : row->name;
}

std::string_view kernels_of_attention(std::string_view implementation) {
  for (const auto& [name, kernels] : kAttention)
    if (name == implementation) return kernels;
  return {};
}

std::string_view attention_of_kernels(std::string_view kernels) {
  for (const auto& [name, ours] : kAttention)
    if (ours == kernels) return name;
  return {};
}

bool wraps_text_alone(std::string_view classes) {
  constexpr std::array<std::string_view, 4> kOfTowers{"Vision", "Siglip", "CLIP", "Audio"};
  return !classes.empty() && std::none_of(kOfTowers.begin(), kOfTowers.end(),
                                          [&](std::string_view part) { return classes.find(part) != std::string_view::npos; });
}

std::string format_named(std::string_view name) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kFormats{{{"bfloat16", "bf16"},
                                                                                   {"bf16", "bf16"},
                                                                                   {"float16", "fp16"},
                                                                                   {"f16", "fp16"},
                                                                                   {"fp16", "fp16"},
                                                                                   {"half", "fp16"},
                                                                                   {"float32", "fp32"},
                                                                                   {"f32", "fp32"},
                                                                                   {"float", "fp32"}}};
  if (name.starts_with("torch.")) name.remove_prefix(6);
  for (const auto& [word, format] : kFormats)
    if (word == name) return std::string(format);
  return {};
}

}  // namespace oomplan::trainers
