#include "frontends/megatron/value_limits.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include <fmt/format.h>

#include "job/limits.hpp"

namespace oomplan::megatron {
namespace {

struct Row {
  std::string_view name;
  Limit64 limits;
};

constexpr std::int64_t kLeastAny = -pow2(31), kMostAny = pow2(40);  // iterations, samples, bytes of a buffer; -1 for none
// What is smaller than its sense is told with Megatron's own reason where Megatron looks (check_*.cpp).
constexpr Limit64 at_most(const Limit64& limits) { return {kLeastAny, limits.most}; }
constexpr Limit64 kHeadWidth{1, pow2(16)}, kRank{0, kHiddenLimit.most};

constexpr std::array<Row, 34> kRows{{
    {"context_parallel_size", at_most(kGpuLimit)},
    {"decoder_first_pipeline_num_layers", at_most(kLayerLimit)},
    {"decoder_last_pipeline_num_layers", at_most(kLayerLimit)},
    {"encoder_num_layers", at_most(kLayerLimit)},
    {"encoder_seq_length", at_most(kTokenLimit)},
    {"expert_model_parallel_size", at_most(kGpuLimit)},
    {"expert_tensor_parallel_size", at_most(kGpuLimit)},
    {"ffn_hidden_size", {1, kWidthLimit.most}},
    {"global_batch_size", at_most(kSequenceLimit)},
    {"hidden_size", kHiddenLimit},
    {"kv_channels", kHeadWidth},
    {"kv_lora_rank", kRank},
    {"make_vocab_size_divisible_by", {1, kVocabularyLimit.most}},
    {"max_position_embeddings", at_most(kTokenLimit)},
    {"micro_batch_size", at_most(kSequenceLimit)},
    {"moe_ffn_hidden_size", {1, kWidthLimit.most}},
    {"moe_router_group_topk", kExpertLimit},
    {"moe_router_num_groups", kExpertLimit},
    {"moe_router_topk", kExpertLimit},
    {"moe_shared_expert_intermediate_size", kWidthLimit},
    {"mtp_num_layers", at_most(kLayerLimit)},
    {"num_attention_heads", {1, kHeadLimit.most}},
    {"num_experts", kExpertLimit},
    {"num_layers", at_most(kLayerLimit)},
    {"num_query_groups", {1, kHeadLimit.most}},
    {"num_virtual_stages_per_pipeline_rank", at_most(kLayerLimit)},
    {"padded_vocab_size", kVocabularyLimit},
    {"pipeline_model_parallel_size", at_most(kGpuLimit)},
    {"q_lora_rank", kRank},
    {"qk_head_dim", {0, kHeadWidth.most}},
    {"qk_pos_emb_head_dim", {0, kHeadWidth.most}},
    {"seq_length", at_most(kTokenLimit)},
    {"tensor_model_parallel_size", at_most(kGpuLimit)},
    {"v_head_dim", {0, kHeadWidth.most}},
}};
static_assert(std::is_sorted(kRows.begin(), kRows.end(), [](const Row& a, const Row& b) { return a.name < b.name; }));

Limit64 limits_of(const Flag& flag) {
  if (flag.name == "vocab_size") return {1, kVocabularyLimit.most - 1};  // an end of document may come on top
  const auto row =
      std::lower_bound(kRows.begin(), kRows.end(), flag.name, [](const Row& r, const std::string& n) { return r.name < n; });
  return row != kRows.end() && row->name == flag.name ? row->limits : Limit64{kLeastAny, kMostAny};
}

/// Shares, and numbers that nothing is multiplied with.
bool is_share(const Flag& flag) {
  return flag.name == "rotary_percent" || flag.name == "attention_dropout" || flag.name == "hidden_dropout";
}

}  // namespace

bool within_limits(const Flag& flag, const nlohmann::json& value) {
  if (flag.value == FlagValue::number && value.is_number()) {
    const double number = value.get<double>();
    return std::isfinite(number) && (!is_share(flag) || (number >= 0 && number <= 1));
  }
  if (flag.value != FlagValue::whole || !value.is_number_integer()) return true;
  constexpr auto kMostHeld = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
  if (value.is_number_unsigned() && value.get<std::uint64_t>() > kMostHeld) return false;
  return limits_of(flag).holds(value.get<std::int64_t>());
}

std::string limits_text(const Flag& flag) {
  if (flag.value == FlagValue::number) return is_share(flag) ? "a number from 0 to 1" : "a finite number";
  const Limit64 limits = limits_of(flag);
  return fmt::format("a whole number from {} to {}", limits.least, limits.most);
}

}  // namespace oomplan::megatron
