// relax/utils/megatron_peft_utils.py: build_lora_peft, MEGATRON_TO_SGLANG_MODULES; relax/backends/sglang/sglang_engine.py:
// _compute_server_args; relax/backends/megatron/model_provider.py: wrap_model_provider_with_lora (redai-studio/Relax, 02bf712a).
#include "frontends/slime/adapters.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace oomplan::slime {
namespace {

/// A layer of Megatron with adapters, and the modules of the servers' model that they become.
struct Target {
  std::string_view megatron, servers;
};
constexpr std::array<Target, 6> kTargets{{{"linear_qkv", "q_proj, k_proj, v_proj"},
                                          {"linear_proj", "o_proj"},
                                          {"linear_fc1", "gate_proj, up_proj"},
                                          {"linear_fc2", "down_proj"},
                                          {"in_proj", "in_proj_qkvz"},
                                          {"out_proj", "out_proj"}}};

const Target* target_named(std::string_view name) {
  const auto* const found = std::ranges::find(kTargets, name, &Target::megatron);
  return found == kTargets.end() ? nullptr : found;
}

std::vector<std::string> targets_of(const SlimeText& text) {
  std::vector<std::string> out;
  for (const auto& one : text.own.value("lora_target_modules"))
    if (one.is_string()) out.push_back(one.get<std::string>());
  return out;
}

Setting setting(const SlimeText& t, std::string key, std::string value, const char* name) {
  const bool given = t.own.given(name);
  return {std::move(key),
          std::move(value),
          {given ? Origin::Kind::file : Origin::Kind::derived,
           {t.told.file, 0, 0, t.own.place(name)},
           given ? "" : fmt::format("{}'s code", t.family->name),
           {}}};
}

}  // namespace

std::vector<Setting> adapters_of(SlimeText& text, const std::string& role) {
  const std::int64_t rank = text.own.whole_or("lora_rank", 0);
  if (rank <= 0) return {};
  const std::vector<std::string> targets = targets_of(text);
  for (const std::string& target : targets)
    if (target_named(target) == nullptr) {
      text.told.add(text.own.place("lora_target_modules"), fmt::format("'{}'", target),
                    "linear_qkv, linear_proj, linear_fc1, linear_fc2, in_proj or out_proj",
                    "not supported yet: adapters beside other layers");
      text.told.problems.back().kind = ProblemKind::not_supported;
      return {};
    }
  std::vector<Setting> out{
      setting(text, role + ".lora.rank", fmt::format("{}", rank), "lora_rank"),
      setting(text, role + ".lora.alpha", fmt::format("{}", text.own.whole_or("lora_alpha", 32)), "lora_alpha"),
      setting(text, role + ".lora.targets", fmt::format("[{}]", fmt::join(targets, ", ")), "lora_target_modules"),
      setting(text, role + ".lora.format", "storage", "lora_rank")};
  const bool gates = std::ranges::find(targets, "in_proj") != targets.end();
  if (gates && text.own.on("lora_adapter_mode"))  // install_gdn_gate_mask_hooks
    out.push_back(setting(text, role + ".lora.masked_gates", "true", "lora_adapter_mode"));
  if (const std::string scope = text.own.text("lora_scope"); scope == "vision") {
    text.told.add(text.own.place("lora_scope"), "'vision'", "all or language",
                  "not supported yet: adapters of a vision tower alone");
    text.told.problems.back().kind = ProblemKind::not_supported;
  } else if (scope == "language") {
    out.push_back(setting(text, role + ".lora.scope", scope, "lora_scope"));
  }
  if (const double dropout = text.own.number("lora_dropout", 0); dropout != 0)
    out.push_back(setting(text, role + ".lora.dropout", fmt::format("{}", dropout), "lora_dropout"));
  return out;
}

bool serves_adapters(const SlimeText& text) { return text.own.whole_or("lora_rank", 0) > 0 && text.own.on("lora_adapter_mode"); }

/// One policy, and two adapters on the host; the base is kept there, too, as it is sent once.
std::vector<Setting> slots_of_adapters(const SlimeText& text, const std::string& role) {
  std::vector<std::string_view> modules;
  for (const std::string& target : targets_of(text))
    if (const Target* of = target_named(target); of != nullptr) modules.push_back(of->servers);
  return {setting(text, role + ".lora.slots", "1", "lora_adapter_mode"),
          setting(text, role + ".lora.rank", fmt::format("{}", text.own.whole_or("lora_rank", 0)), "lora_rank"),
          setting(text, role + ".lora.targets", fmt::format("[{}]", fmt::join(modules, ", ")), "lora_target_modules")};
}

}  // namespace oomplan::slime
