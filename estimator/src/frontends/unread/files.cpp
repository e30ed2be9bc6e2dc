// Configurations of such frameworks: never taken for another's.
#include <algorithm>
#include <array>

#include "frontends/unread/unread.hpp"

namespace oomplan::unread {
namespace {

/// A line that begins with `key` and a colon, at the left edge.
bool has_key(std::string_view text, std::string_view key) {
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    const std::string_view line = text.substr(at, end - at);
    if (line.starts_with(key) && line.substr(key.size()).starts_with(':')) return true;
    at = end + 1;
  }
  return false;
}

/// All keys at the left edge, and one of the texts anywhere.
struct Row {
  std::string_view framework;
  std::array<std::string_view, 3> keys;
  std::array<std::string_view, 4> texts;
};
constexpr std::array<Row, 9> kRows{{
    // verl-project/verl 1dda039b: what a script of somebody else's is given, its recipes and tests
    {"verl", {"actor_rollout_ref"}, {}},
    {"verl", {}, {"file://verl/", "verl/trainer/config"}},
    {"verl", {"defaults", "hydra"}, {"verl"}},
    {"SkyPilot", {"resources", "run"}, {}},
    // hiyouga/LLaMA-Factory: examples; axolotl-ai-cloud/axolotl: examples; pytorch/torchtune: recipes/configs
    {"LLaMA-Factory", {"model_name_or_path", "finetuning_type"}, {}},
    {"Axolotl", {"base_model", "datasets"}, {}},
    {"torchtune", {"model", "tokenizer"}, {"_component_: torchtune."}},
    {"Accelerate", {"compute_environment", "distributed_type"}, {}},
    {"NeMo-RL", {"policy", "grpo"}, {}},
}};

}  // namespace

std::string framework_of(std::string_view text) {
  if (has_key(text, "oomplan")) return "";
  for (const Row& row : kRows) {
    bool all = true, asks = false, found = false;
    for (const std::string_view key : row.keys) all = all && (key.empty() || has_key(text, key));
    for (const std::string_view word : row.texts) {
      asks = asks || !word.empty();
      found = found || (!word.empty() && text.find(word) != std::string_view::npos);
    }
    if (all && (found || !asks)) return std::string(row.framework);
  }
  return "";
}

}  // namespace oomplan::unread
