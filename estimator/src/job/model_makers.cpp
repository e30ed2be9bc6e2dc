#include "job/model_makers.hpp"

#include <array>
#include <utility>

#include "catalog/architecture.hpp"

namespace oomplan {
namespace {

constexpr std::array<std::pair<std::string_view, MadeModel>, 8> kByMbridge{
    {{"qwen3_5", {.deallocates = true, .activation_fusion = true}},
     {"qwen3_5_moe",
      {.deallocates = true, .activation_fusion = true, .permute_fusion = true, .shared_overlap = true, .router = DType::fp32}},
     {"qwen3_vl", {.deallocates = true, .activation_fusion = true}},
     {"qwen3_vl_moe", {.deallocates = true, .activation_fusion = true, .permute_fusion = true, .router = DType::fp32}},
     {"qwen2_moe", {.activation_fusion = true, .shared_overlap = true}},
     {"qwen3_moe", {.activation_fusion = true}},
     {"glm4_moe", {.activation_fusion = true, .shared_overlap = true, .balances = true, .router = DType::fp32}},
     {"deepseek_v3", {.activation_fusion = true, .shared_overlap = true}}}};

/// verl/models/mcore/config_converter.py, 0.4.0 to 0.7.0.
constexpr std::array<std::pair<std::string_view, MadeModel>, 4> kByVerl{
    {{"qwen2_moe", {.activation_fusion = true, .shared_overlap = true}},
     {"qwen3_moe", {.activation_fusion = true}},
     {"mixtral", {.rotary_fusion = true, .activation_fusion = true}},
     {"deepseek_v3", {.activation_fusion = true, .shared_overlap = true, .balances = true, .router = DType::fp64}}}};

/// GPTModelProvider fuses gradients wherever Transformer Engine is installed (utils/fusions.py).
constexpr MadeModel kProvider{.fused_gradients = true, .deallocates = true};
constexpr MadeModel with(MadeModel m, bool activation, bool rotary) {
  m.activation_fusion = activation;
  m.rotary_fusion = rotary;
  return m;
}
/// Experts with Transformer Engine's permutation and a loss that balances them.
constexpr MadeModel of_experts(bool activation, bool overlaps, DType router) {
  MadeModel m = with(kProvider, activation, false);
  m.permute_fusion = m.balances = true;
  m.shared_overlap = overlaps;
  m.router = router;
  return m;
}
constexpr std::array<std::pair<std::string_view, MadeModel>, 13> kByMegatronBridge{
    {{"qwen3_5", with(kProvider, true, false)},
     {"qwen3_5_moe", of_experts(true, false, DType::fp32)},
     {"qwen3_vl", with(kProvider, true, false)},
     {"qwen3_vl_moe", of_experts(true, false, DType::fp32)},
     {"qwen2_5_vl", kProvider},
     {"qwen2", kProvider},
     {"qwen3", kProvider},
     {"qwen3_moe", of_experts(false, false, DType::bf16)},
     {"llama", with(kProvider, true, true)},
     {"glm4_moe", of_experts(true, true, DType::fp32)},
     {"gemma4", of_experts(false, false, DType::fp32)},
     {"deepseek_v3", of_experts(true, true, DType::fp32)},
     {"kimi_k25", of_experts(true, true, DType::fp32)}}};

template <class Table>
std::optional<MadeModel> found(const Table& table, std::string_view family) {
  for (const auto& [name, made] : table)
    if (name == family) return made;
  return std::nullopt;
}

}  // namespace

bool made_by_bridge(const Trainer& t) { return t.loop.says_loss && t.megatron.maker == ModelMaker::megatron_bridge; }

bool sees_images_under_megatron(const Trainer& t) { return t.loop.joins_images_itself || made_by_bridge(t); }

std::string_view made_as(const Architecture& a) { return a.tower.kind.empty() ? a.family : a.model_type; }

bool trains_mergers_alone(ModelMaker maker, const Architecture& a) {
  return maker == ModelMaker::megatron_bridge && made_as(a) == "qwen3_vl_moe";
}

std::optional<MadeModel> made_model(ModelMaker maker, std::string_view family) {
  if (maker == ModelMaker::mbridge) return found(kByMbridge, family).value_or(MadeModel{});
  if (maker == ModelMaker::verl) return found(kByVerl, family).value_or(MadeModel{});
  return found(kByMegatronBridge, family);
}

}  // namespace oomplan
