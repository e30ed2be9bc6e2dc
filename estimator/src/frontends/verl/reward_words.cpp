// verl/experimental/reward_loop/reward_loop.py migrate_legacy_reward_impl, 0.7.1 to 0.10: what is not null replaces. main_ppo
// calls it up to 0.8.0, the fully asynchronous trainer to this day.
#include "frontends/verl/reward_words.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "frontends/verl/tree.hpp"

namespace oomplan::verl {
namespace {

using compose::Node;

bool takes_over(const VerlText& text) {
  if (text.release < release_named("0.7.1")) return false;
  const std::string& module = text.arguments.module;
  return module.find("fully_async") != std::string::npos ||
         (module == "verl.trainer.main_ppo" && text.release < release_named("0.9.0"));
}

/// Copies: assigning into the tree that is read from would not do.
void replace(Node& root, std::string_view from, const std::string& to) {
  const Node* old = std::as_const(root).at(from);
  if (old == nullptr || old->kind == Node::Kind::null) return;
  Node value = *old;
  if (Node* const now = root.at(to)) *now = std::move(value);
}

}  // namespace

void take_over_reward_words(VerlText& text) {
  if (!takes_over(text)) return;
  for (const std::string key : {"enable", "enable_resource_pool", "n_gpus_per_node", "nnodes"})
    replace(text.root, "reward_model." + key, "reward.reward_model." + key);
  replace(text.root, "reward_model.model.path", "reward.reward_model.model_path");
  if (const Node* const rollout = std::as_const(text.root).at("reward_model.rollout"); rollout != nullptr) {
    std::vector<std::string> keys;
    for (const auto& entry : rollout->entries) keys.push_back(entry.key);
    for (const std::string& key : keys) replace(text.root, "reward_model.rollout." + key, "reward.reward_model.rollout." + key);
  }
  const Node* const own = std::as_const(text.root).at("custom_reward_function");
  const bool asked = own != nullptr && std::any_of(own->entries.begin(), own->entries.end(),
                                                   [](const auto& e) { return e.value.kind != Node::Kind::null; });
  if (asked) replace(text.root, "custom_reward_function", "reward.custom_reward_function");
}

}  // namespace oomplan::verl
