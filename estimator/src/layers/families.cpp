#include "layers/families.hpp"

#include <algorithm>
#include <iterator>

namespace oomplan {
namespace {

constexpr FamilyCode kCodes[] = {
    {.family = "llama", .liger = LigerPatch::modules, .tensor_parallel = true},
    {.family = "mistral", .liger = LigerPatch::modules, .tensor_parallel = true},
    {.family = "qwen2", .liger = LigerPatch::modules, .tensor_parallel = true},
    {.family = "qwen3", .liger = LigerPatch::modules, .tensor_parallel = true},
    {.family = "qwen2_moe", .router_first = true, .linear_adapters_alone = true},
    {.family = "qwen3_moe", .adapts_experts = true},
    {.family = "mixtral", .router_first = true},
    {.family = "olmoe", .liger = LigerPatch::none, .router_first = true, .adapts_experts = true},
    {.family = "gpt_oss",
     .norm = NormCode::rms_cast_last,
     .rotary = {.form = RotaryForm::halves},
     .router_first = true,
     .returns_router_weights = true,
     .linear_adapters_alone = true,
     .masks_by_span = true,
     .no_sdpa = true},
    {.family = "deepseek_v2", .rotary = {.form = RotaryForm::complex}, .adapts_experts = true},
    {.family = "deepseek_v3", .rotary = {.form = RotaryForm::pairs}},
    {.family = "glm4_moe_lite", .rotary = {.form = RotaryForm::pairs}},
    {.family = "minimax_m2", .rotary = {.splits_head = true}, .router_first = true},
    {.family = "glm", .rotary = {.repeats_cos = true, .splits_head = true}},
    {.family = "stablelm",
     .norm = NormCode::layer,
     .rotary = {.splits_head = true},
     .keeps_attention = true,
     .keeps_normed = true},
    {.family = "gemma3",
     .norm = NormCode::rms_plus_one,
     .norms_heads = true,
     .scales_in_module = true,
     .scales_embedding = true,
     .tables_by_span = true,
     .masks_by_span = true},
    {.family = "cohere2",
     .norm = NormCode::layer_by_hand,
     .rotary = {.casts_first = true},
     .scales_logits = true,
     .masks_by_span = true},
    {.family = "dots1", .adapts_experts = true},
    {.family = "glm4_moe", .rotary = {.splits_head = true}, .adapts_experts = true},
    {.family = "gpt2",
     .norm = NormCode::layer,
     .fused_qkv = FusedQkv::split,
     .conv1d = true,
     .softmax_in_dtype = true,
     .keeps_attention = true},
    {.family = "gpt_neox",
     .norm = NormCode::layer,
     .rotary = {.splits_head = true},
     .fused_qkv = FusedQkv::split,
     .parallel_sum = ParallelSum::residual_last},
    {.family = "phi", .norm = NormCode::layer, .rotary = {.splits_head = true}, .parallel_sum = ParallelSum::residual_last},
    {.family = "opt", .norm = NormCode::layer, .scales_projection = true, .positions_by_sequence = true, .flat_rows = true},
    {.family = "falcon",
     .norm = NormCode::layer,
     .fused_qkv = FusedQkv::multi_query,
     .parallel_sum = ParallelSum::in_place,
     .softmax_in_dtype = true},
    {.family = "starcoder2", .norm = NormCode::layer},
    {.family = "ernie4_5", .rotary = {.repeats_cos = true, .table_in_fp32 = true, .casts_terms = true}},
    {.family = "smollm3", .liger = LigerPatch::modules},
    {.family = "seed_oss"},
    {.family = "granite", .scales_embedding = true, .scales_residual = true, .scales_logits = true},
    {.family = "ministral3", .rotary = {.scales_query = true}},
    {.family = "hunyuan_v1_dense", .rotary = {.before_norm = true}},
    {.family = "glm4", .rotary = {.repeats_cos = true, .splits_head = true}},
    {.family = "phi3", .rotary = {.splits_head = true, .joins_at_once = true}},
    {.family = "olmo", .norm = NormCode::layer_in_fp32, .rotary = {.table_in_fp32 = true}},
    {.family = "olmo2", .norm = NormCode::rms_cast_last, .rotary = {.table_in_fp32 = true}},
    {.family = "olmo3",
     .norm = NormCode::rms_cast_last,
     .rotary = {.table_in_fp32 = true},
     .tables_by_span = true,
     .masks_by_span = true},
    {.family = "gemma", .norm = NormCode::rms_plus_one, .scales_in_module = true, .scales_embedding = true},
    {.family = "gemma2",
     .norm = NormCode::rms_plus_one,
     .scales_in_module = true,
     .scales_embedding = true,
     .masks_by_span = true,
     .no_sdpa = true},
    {.family = "cohere", .norm = NormCode::layer_by_hand, .rotary = {.casts_first = true}, .scales_logits = true},
};

}  // namespace

const FamilyCode* find_family_code(std::string_view family) {
  const auto* at = std::find_if(std::begin(kCodes), std::end(kCodes), [&](const FamilyCode& c) { return c.family == family; });
  return at == std::end(kCodes) ? nullptr : at;
}

const FamilyCode& family_code(std::string_view family) { return *find_family_code(family); }

}  // namespace oomplan
