#include "frontends/verl/predicted.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include "frontends/verl/meaning_parts.hpp"

namespace oomplan::verl {
namespace {

std::string key(std::string_view role, std::string_view name) {
  return fmt::format("{}model.mtp.{}", role == "trainer" ? "" : std::string(kArr) + ".", name);
}

bool asked(const VerlText& text, std::string_view role, std::string_view name) {
  const auto* n = text.root.at(key(role, name));
  return n != nullptr && n->kind == compose::Node::Kind::boolean && n->boolean;
}

std::string word(const VerlText& text, std::string_view name) {
  const auto* n = text.root.at(key("rollout", name));
  return n != nullptr && n->kind == compose::Node::Kind::text ? n->text : std::string();
}

}  // namespace

bool predicts(const VerlText& text, std::string_view role) {
  return (role == "actor" || role == "trainer") && asked(text, role, "enable");
}

void refuse_predicted(VerlSettings& s, const VerlText& text, std::string_view role) {
  if (predicts(text, role) && asked(text, role, "enable_train") && !asked(text, role, "detach_encoder"))
    s.refuse_key(key(role, "detach_encoder"), "multi-token prediction whose gradients reach the decoder");
}

// verl/utils/megatron_utils.py, 0.8 to 0.10: check_mtp_config, patch_engine_mtp. With `enable` alone the blocks have weights,
// gradients and states: no labels come, so that nothing calls them, and nobody freezes them.
void predicted_settings(VerlSettings& s, const VerlText& text, const VerlMeaning& m, const std::string& role,
                        std::vector<Note>& notes) {
  if (!predicts(text, role)) return;
  s.set_at(role + ".mtp_layers", "1", key(role, "enable"));
  if (!asked(text, role, "enable_train")) return s.set_at(role + ".mtp_runs", "false", key(role, "enable_train"));
  const ToldFact* again = m.find(fmt::format("roles.{}.recompute", role));
  const FactValue* granularity = again != nullptr ? again->value.find("granularity") : nullptr;
  if (!s.since("0.10.0") || granularity == nullptr || granularity->plain() != "full") return;
  Place place = text.root.at(key(role, "enable_train"))->origin.place;
  place.path = key(role, "enable_train");
  notes.push_back({Note::Level::warning, std::move(place),
                   "Megatron-core 0.18.0, which verl 0.10 installs, itself fails where blocks of multi-token prediction are "
                   "computed again (_checkpointed_forward has no padding_mask); the answer is that of a release that does not"});
}

bool drafts_ahead(const VerlText& text) { return asked(text, "rollout", "enable") && asked(text, "rollout", "enable_rollout"); }

void refuse_drafts(VerlSettings& s, const VerlText& text, std::string_view engine) {
  if (!drafts_ahead(text)) return;
  const std::string method = word(text, "method"), algorithm = word(text, "speculative_algorithm");
  if (engine == "vllm" && method != "mtp") s.refuse_key(key("rollout", "method"), fmt::format("the drafts '{}'", method));
  if (engine == "sglang" && algorithm != "NEXTN" && algorithm != "EAGLE")
    s.refuse_key(key("rollout", "speculative_algorithm"), fmt::format("the drafts '{}'", algorithm));
}

// verl/workers/rollout/vllm_rollout/vllm_async_server.py and sglang_rollout/async_sglang_server.py, 0.10. SGLang's EAGLE without
// a draft of its own is NEXTN.
void draft_settings(VerlSettings& s, const VerlText& text, std::string_view engine) {
  if (!drafts_ahead(text)) return;
  constexpr std::array<std::pair<std::string_view, std::string_view>, 1> kVllm{{{"draft_tokens", "num_speculative_tokens"}}};
  constexpr std::array<std::pair<std::string_view, std::string_view>, 3> kSglang{
      {{"draft_tokens", "speculative_num_draft_tokens"},
       {"draft_steps", "speculative_num_steps"},
       {"draft_branches", "speculative_eagle_topk"}}};
  const auto put = [&](const auto& rows) {
    for (const auto& [knob, name] : rows) {
      const std::string at = key("rollout", name);
      if (const auto* n = text.root.at(at); n != nullptr && n->kind != compose::Node::Kind::null)
        s.set_at(fmt::format("rollout.{}", knob), value_of(*n).plain(), at);
    }
  };
  if (engine == "sglang")
    put(kSglang);
  else
    put(kVllm);
}

}  // namespace oomplan::verl
