// relax/backends/megatron/model_provider.py: freeze_model_params, bridge_keys (redai-studio/Relax, 07d5d193). Names are those of
// Megatron-core 85bced0ae and Megatron-Bridge 2faedbf6 (modelling_qwen3_vl/{model,vision_model,transformer_block}.py).
#include "frontends/slime/frozen.hpp"

#include <algorithm>
#include <array>
#include <optional>
#include <regex>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "frontends/slime/specifications.hpp"

namespace oomplan::slime {
namespace {

using Names = std::vector<std::string>;

constexpr std::array kOfLayer = std::to_array<std::string_view>(
    {"self_attention.dt_bias", "self_attention.A_log", "mlp.router.weight", "mlp.router.bias", "mlp.shared_experts.gate_weight"});
constexpr std::array kProducts = std::to_array<std::string_view>(
    {"self_attention.linear_proj", "self_attention.linear_qkv", "self_attention.linear_q_proj",
     "self_attention.linear_q_down_proj", "self_attention.linear_q_up_proj", "self_attention.linear_kv_down_proj",
     "self_attention.linear_kv_up_proj", "self_attention.in_proj", "self_attention.out_proj", "self_attention.conv1d",
     "mlp.linear_fc1", "mlp.linear_fc2", "mlp.shared_experts.linear_fc1", "mlp.shared_experts.linear_fc2"});
constexpr std::array kNorms = std::to_array<std::string_view>(
    {"self_attention.q_layernorm", "self_attention.k_layernorm", "self_attention.kv_layernorm", "self_attention.out_norm",
     "input_layernorm", "pre_mlp_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm"});

/// Of all families: a model has some of them.
void add_layer(const std::string& at, std::int64_t experts, Names& to) {
  for (const std::string_view name : kOfLayer) to.push_back(fmt::format("{}.{}", at, name));
  for (const std::string_view product : kProducts)
    for (const char* of : {"weight", "bias", "layer_norm_weight", "layer_norm_bias"})
      to.push_back(fmt::format("{}.{}.{}", at, product, of));
  for (const std::string_view norm : kNorms)
    for (const char* of : {"weight", "bias"}) to.push_back(fmt::format("{}.{}.{}", at, norm, of));
  for (std::int64_t i = 0; i < experts; ++i)
    for (const char* product : {"linear_fc1", "linear_fc2"})
      to.push_back(fmt::format("{}.mlp.experts.{}.weight{}", at, product, i));
}

/// Experts of one layer have all numbers, those of others one.
Names of_language(const Architecture& a, bool beside_tower) {
  const std::string first = beside_tower ? "language_model." : "";
  Names out;
  for (const char* name : {"embedding.word_embeddings.weight", "embedding.position_embeddings.weight",
                           "decoder.final_layernorm.weight", "decoder.final_layernorm.bias", "output_layer.weight"})
    out.push_back(first + name);
  std::int64_t number = 0;
  for (const LayerRun& run : a.runs)
    for (std::int64_t i = 0; i < run.count; ++i, ++number) {
      const std::int64_t experts = run.layer.feed_forward.experts;
      add_layer(fmt::format("{}decoder.layers.{}", first, number), i == 0 ? experts : std::min<std::int64_t>(1, experts), out);
    }
  const std::string block = first + "mtp.layers.0";
  for (const char* name : {"enorm.weight", "hnorm.weight", "eh_proj.weight", "final_layernorm.weight"})
    out.push_back(fmt::format("{}.{}", block, name));
  add_layer(block + ".mtp_model_layer", a.runs.back().layer.feed_forward.experts, out);
  return out;
}
Names of_tower(const Tower& t) {
  Names out{"vision_model.patch_embed.proj.weight", "vision_model.patch_embed.proj.bias", "vision_model.pos_embed.weight"};
  for (std::int64_t i = 0; i < t.layers; ++i)
    for (const char* product : {"self_attention.linear_proj", "self_attention.linear_qkv", "mlp.linear_fc1", "mlp.linear_fc2"})
      for (const char* of : {"weight", "bias", "layer_norm_weight", "layer_norm_bias"})
        out.push_back(fmt::format("vision_model.decoder.layers.{}.{}.{}", i, product, of));
  return out;
}
Names of_mergers(const Tower& t) {
  Names out, mergers{"vision_model.merger"};
  for (std::int64_t i = 0; i < t.deepstack; ++i)
    mergers.push_back(fmt::format("vision_model.decoder.deepstack_merger_list.{}", i));
  for (const std::string& merger : mergers)
    for (const char* module : {"patch_norm", "linear_fc1", "linear_fc2"})
      for (const char* of : {"weight", "bias"}) out.push_back(fmt::format("{}.{}.{}", merger, module, of));
  return out;
}

/// A pattern whose time depends on the names' lengths alone: no repeated groups, few repetitions.
bool is_plain(std::string_view pattern) {
  constexpr std::ptrdiff_t kMostRepetitions = 4;
  constexpr std::size_t kLongest = 200;
  const auto repeats = [](char c) { return c == '*' || c == '+' || c == '{'; };
  for (std::size_t i = 1; i < pattern.size(); ++i)
    if (repeats(pattern[i]) && pattern[i - 1] == ')') return false;
  return pattern.size() <= kLongest && std::ranges::count_if(pattern, repeats) <= kMostRepetitions;
}

/// The patterns of a flag; none: one of them is not read.
std::optional<std::vector<std::regex>> patterns_of(const SlimeText& t, const char* flag) {
  std::vector<std::regex> out;
  const nlohmann::json& given = t.own.value(flag);
  if (!given.is_array()) return std::nullopt;
  for (const auto& one : given) {
    if (!one.is_string() || !is_plain(one.get_ref<const std::string&>())) return std::nullopt;
    try {
      out.emplace_back(one.get_ref<const std::string&>());
    } catch (const std::regex_error&) {
      return std::nullopt;
    }
  }
  return out;
}

enum class Found : std::uint8_t { none, some, all };
Found found_in(const Names& names, const std::vector<std::regex>& patterns) {
  const auto hits = std::ranges::count_if(names, [&](const std::string& name) {
    return std::ranges::any_of(patterns, [&](const std::regex& p) { return std::regex_search(name, p); });
  });
  return hits == 0 ? Found::none : hits == std::ssize(names) ? Found::all : Found::some;
}
/// What is frozen where `found` is what is trained.
Found other(Found found) { return found == Found::none ? Found::all : found == Found::all ? Found::none : found; }

Setting setting(const SlimeText& t, const std::string& role, const char* value, const char* flag) {
  return {fmt::format("{}.vision.train", role), value, {Origin::Kind::file, {t.told.file, 0, 0, t.own.place(flag)}, "", {}}};
}

}  // namespace

std::vector<Setting> frozen_of(SlimeText& text, const Architecture& model, const std::string& role) {
  const Own& o = text.own;
  const bool only = o.on("only_train_params_name_list");
  if (!only && !o.on("freeze_params_name_list")) return {};
  const char* flag = only ? "only_train_params_name_list" : "freeze_params_name_list";
  const auto refuse = [&](const char* expected, const char* what) {
    text.told.add(o.place(flag), o.value(flag).dump(), expected, fmt::format("not supported yet: {}", what));
    text.told.problems.back().kind = ProblemKind::not_supported;
    return std::vector<Setting>{};
  };
  constexpr const char* kExpected = "patterns of all parameters of the tower, or of all but its mergers'";
  constexpr const char* kPart = "models of which another part is frozen";
  if (o.whole_or("lora_rank", 0) > 0) return refuse("nothing beside --lora-rank", "adapters, and patterns of what is frozen");
  const auto patterns = patterns_of(text, flag);
  if (!patterns) return refuse(kExpected, "patterns with repeated groups, or in Python's own words");
  const auto frozen = [&](const Names& names) { return only ? other(found_in(names, *patterns)) : found_in(names, *patterns); };
  const bool tower = is_made_by_bridge(text) && !model.tower.kind.empty();
  if (frozen(of_language(model, tower)) != Found::none) return refuse(kExpected, kPart);
  if (!tower) return {};
  Found body = frozen(of_tower(model.tower)), mergers = frozen(of_mergers(model.tower));
  if (!only && o.on("freeze_vision_model")) {  // a list to train takes it back
    body = Found::all;
    if (o.on("freeze_vision_projection")) mergers = Found::all;
  }
  if (body == Found::some || mergers == Found::some || (body == Found::none && mergers == Found::all))
    return refuse(kExpected, kPart);
  if (body == Found::none) return {};
  return {setting(text, role, mergers == Found::all ? "none" : "projector", flag)};
}

}  // namespace oomplan::slime
